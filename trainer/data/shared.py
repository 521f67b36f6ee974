"""Keep a data set in memory once per machine: one local rank reads it, the others map the same memory.

The memory is a memfd (Linux): it is freed with the last process that maps it, however that ends, and the
size of /dev/shm does not limit it. Ranks map it copy-on-write: a rank that writes changes its own copy.

    training = once_per_machine(partial(task.data, train=True), runtime)
"""

import io
import logging
import math
import mmap
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.config.exits import Fault
from trainer.data.sets import Data, InMemory
from trainer.distributed.runtime import Runtime, as_fault, from_all

log = logging.getLogger("trainer")

_ALIGNMENT = 64  # bytes: a cache line, and more than any element needs


@dataclass(frozen=True)
class _Place:
    """The place of a tensor's elements in the memory; `start` in bytes."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class _Offer:
    """The message from the rank that reads to the others of its machine: all but the elements.

    Without `path` the data cannot be shared, and every rank reads it.
    """

    node: str
    path: str = ""
    pickled: bytes = b""
    fault: Fault | None = None


def once_per_machine(build: Callable[[], Data], runtime: Runtime) -> Data:
    """Return what `build` returns, built on local rank 0 alone where the data is in memory.

    A collective. The others wait, at most `TRAINER_COLLECTIVE_TIMEOUT`, and raise the fault of rank 0.
    """
    if runtime.control is None:
        return build()
    node = os.environ.get("GROUP_RANK", "0")
    data: Data | None = None
    mine: _Offer | None = None
    memory = -1
    try:
        if runtime.local_rank == 0:
            data, mine, memory = _build(build, node)
        (offer,) = [o for o in from_all(mine, runtime) if o is not None and o.node == node]
        if data is None and offer.fault is None and offer.path:
            data = _map(offer)
        from_all(None, runtime)  # the memory stays open until all have mapped it
    finally:
        if memory >= 0:
            os.close(memory)
    if offer.fault is not None:
        raise offer.fault
    return build() if data is None else data


def _build(build: Callable[[], Data], node: str) -> tuple[Data | None, _Offer, int]:
    """Return the data, the message to the others, and the file descriptor of the memory (-1: none)."""
    try:
        data = build()
    except Exception as error:  # noqa: BLE001  # the others wait for an answer
        fault = as_fault(error)
        if fault is not error:
            fault.__cause__ = error  # the traceback is printed by this rank
        return None, _Offer(node, fault=fault), -1
    if not isinstance(data, InMemory) or not hasattr(os, "memfd_create"):
        return data, _Offer(node), -1
    tensors: list[Tensor] = []
    try:
        pickled = _pickle(data, tensors)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        log.warning(
            "data: every rank holds a copy of its own, since it cannot be pickled: %s", error
        )
        return data, _Offer(node), -1
    memory = os.memfd_create("muster-data")
    _write(tensors, memory)
    offer = _Offer(node, f"/proc/{os.getpid()}/fd/{memory}", pickled)
    return _map(offer), offer, memory


def _map(offer: _Offer) -> Data:
    with Path(offer.path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else None
    data: Data = _Unpickler(offer.pickled, memory).load()
    return data


def _places(tensors: list[Tensor]) -> list[_Place]:
    places, end = [], 0
    for tensor in tensors:
        places.append(_Place(end, tuple(tensor.shape), tensor.dtype))
        end += math.ceil(tensor.nbytes / _ALIGNMENT) * _ALIGNMENT
    return places


def _write(tensors: list[Tensor], memory: int) -> None:
    with os.fdopen(memory, "wb", closefd=False) as file:
        for tensor, place in zip(tensors, _places(tensors), strict=True):
            file.seek(place.start)
            if tensor.numel():
                file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)


def _pickle(data: Data, tensors: list[Tensor]) -> bytes:
    """Return `data` pickled without its tensors' elements; append the tensors to `tensors`."""
    buffer = io.BytesIO()
    _Pickler(buffer, tensors).dump(data)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Replaces each plain tensor in host memory by its place."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors

    def persistent_id(self, obj: Any) -> _Place | None:
        plain = type(obj) is Tensor and obj.layout == torch.strided
        if not plain or obj.device.type != "cpu" or obj.requires_grad:
            return None
        self._tensors.append(obj)
        return _places(self._tensors)[-1]


class _Unpickler(pickle.Unpickler):
    """Replaces each place by a tensor over the memory."""

    def __init__(self, pickled: bytes, memory: mmap.mmap | None) -> None:
        super().__init__(io.BytesIO(pickled))
        self._memory = memory

    def persistent_load(self, place: _Place) -> Tensor:
        count = math.prod(place.shape)
        if not count or self._memory is None:
            return torch.empty(place.shape, dtype=place.dtype)
        flat = torch.frombuffer(self._memory, dtype=place.dtype, count=count, offset=place.start)
        return flat.view(place.shape)
