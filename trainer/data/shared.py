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
from collections.abc import Callable, Sequence
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
class _Offer:
    """The message from the rank that reads to the others of its machine: all but the elements.

    Without `path` the data cannot be shared, and every rank reads it.
    """

    node: str
    path: str = ""
    pickled: bytes = b""
    places: Sequence[tuple[int, int]] = ()  # first byte and end of each tensor in the memory
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
    elements: list[pickle.PickleBuffer] = []
    pickled = io.BytesIO()
    try:
        _Pickler(pickled, protocol=5, buffer_callback=elements.append).dump(data)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        log.warning(
            "data: every rank holds a copy of its own, since it cannot be pickled: %s", error
        )
        return data, _Offer(node), -1
    memory = os.memfd_create("muster-data")
    places, start = [], 0
    with os.fdopen(memory, "wb", closefd=False) as file:
        for part in (element.raw() for element in elements):
            file.seek(start)
            file.write(part)
            places.append((start, start + part.nbytes))
            start += math.ceil(part.nbytes / _ALIGNMENT) * _ALIGNMENT
    offer = _Offer(node, f"/proc/{os.getpid()}/fd/{memory}", pickled.getvalue(), places)
    return _map(offer), offer, memory


def _map(offer: _Offer) -> Data:
    with Path(offer.path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
    elements = [memoryview(memory)[start:end] for start, end in offer.places]
    data: Data = pickle.loads(offer.pickled, buffers=elements)  # noqa: S301  # of this machine's rank 0
    return data


class _Pickler(pickle.Pickler):
    """Leaves the elements of plain tensors in host memory out of the pickle, as buffers."""

    def reducer_override(self, obj: Any) -> Any:
        plain = type(obj) is Tensor and obj.layout == torch.strided
        if not plain or obj.device.type != "cpu" or obj.requires_grad:
            return NotImplemented
        elements = pickle.PickleBuffer(obj.contiguous().flatten().view(torch.uint8).numpy())
        return _tensor, (elements, obj.dtype, tuple(obj.shape))


def _tensor(elements: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not elements.nbytes:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(elements, dtype=dtype).view(shape)
