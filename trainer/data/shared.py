"""Keep a data set in memory once per machine: one local rank reads it, the other ranks map its memory.

The memory is a memfd (Linux): it is freed when the last process that maps it ends, even if it is killed,
and the size of /dev/shm does not limit it. It is copy-on-write: a rank that writes changes its own copy.

    training = once_per_machine(partial(task.data, train=True), runtime, task=task)
"""

import fcntl
import io
import json
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

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Data, InMemory
from trainer.distributed.messages import from_all
from trainer.distributed.runtime import Runtime, as_fault
from trainer.regular import open_regular

log = logging.getLogger("trainer")

_NAME = "muster-data"
_WORD = 8  # bytes of the last number: where the list of positions starts
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_ALIGNMENT = 64  # bytes: a cache line, which is more than any element needs


@dataclass(frozen=True)
class _Offer:
    """The message from the rank that reads to the other ranks of its machine: where the memory is.

    Without `descriptor` the data cannot be shared, and every rank reads it itself.
    """

    node: str
    pid: int = 0
    descriptor: int = -1
    fault: tuple[Exit, str] | None = None


def once_per_machine(build: Callable[[], Data], runtime: Runtime, *, task: object) -> Data:
    """Return what `build` returns. If the data is in memory, only local rank 0 calls `build`.

    The other ranks' tasks then get the attributes that `build` has set in its task, such as the weights
    of the classes. All ranks call it together. The other ranks wait, at most
    `TRAINER_COLLECTIVE_TIMEOUT`, and raise the fault of local rank 0.
    """
    if runtime.control is None:
        return build()
    node = os.environ.get("GROUP_RANK", "0")
    data: Data | None = None
    mine: _Offer | None = None
    memory = -1
    failed: Exception | None = None
    try:
        if runtime.local_rank == 0:
            try:
                before = _attributes(task)
                data = build()
                mine = _Offer(node)
                if isinstance(data, InMemory) and hasattr(os, "memfd_create"):
                    mine, memory = _offer((data, _changed(task, before)), node)
                if mine.descriptor >= 0:
                    data = _take(mine, task)
            except Exception as error:  # noqa: BLE001  # the other ranks wait for an answer
                failed, fault = error, as_fault(error)
                mine = _Offer(node, fault=(fault.code, str(fault)))
        (offer,) = [o for o in from_all(mine, runtime, _Offer | None) if o and o.node == node]
        if data is None and offer.fault is None and offer.descriptor >= 0:
            data = _take(offer, task)
        from_all(None, runtime, None)  # the memory stays open until all ranks have mapped it
    finally:
        if memory >= 0:
            os.close(memory)
    if offer.fault is not None:
        # If it was not a Fault, this rank prints its traceback.
        raise Fault(*offer.fault) from (None if isinstance(failed, Fault) else failed)
    return build() if data is None else data


def _attributes(task: object) -> dict[str, tuple[Any, int]]:
    """Return the task's attributes, each with its size, which changes when something is put into it."""
    return {
        name: (value, len(value) if isinstance(value, dict | list | set) else 0)
        for name, value in getattr(task, "__dict__", {}).items()
    }


def _changed(task: object, before: dict[str, tuple[Any, int]]) -> dict[str, Any]:
    """Return the attributes that have been set, or have another size, since `before`."""
    return {
        name: value
        for name, (value, size) in _attributes(task).items()
        if name not in before or before[name][0] is not value or before[name][1] != size
    }


def _take(offer: _Offer, task: object) -> Data:
    """Return the data that is offered, and set the attributes in the task."""
    data: Data
    data, changed = _map(offer)
    for name, value in changed.items():  # a task may have no __dict__
        setattr(task, name, value)
    return data


def _offer(content: Any, node: str) -> tuple[_Offer, int]:
    """Return the message to the other ranks, and the memory's file descriptor (-1: none)."""
    elements: list[pickle.PickleBuffer] = []
    pickled = io.BytesIO()
    try:
        _Pickler(pickled, protocol=5, buffer_callback=elements.append).dump(content)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        log.warning(
            "data: every rank holds its own copy, because the data, or what data() has set in the task, "
            "cannot be pickled: %s",
            error,
        )
        return _Offer(node), -1
    memory = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    places, start = [], 0
    with os.fdopen(memory, "wb", closefd=False) as file:
        for part in (pickled.getbuffer(), *(element.raw() for element in elements)):
            file.seek(start)
            file.write(part)
            places.append((start, start + part.nbytes))
            start += math.ceil(part.nbytes / _ALIGNMENT) * _ALIGNMENT
        file.seek(start)
        file.write(json.dumps(places).encode() + start.to_bytes(_WORD, "big"))
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    return _Offer(node, os.getpid(), memory), memory


def _map(offer: _Offer) -> Any:
    with open_regular(Path(f"/proc/{offer.pid}/fd/{offer.descriptor}")) as file:
        # Any rank of the group can send an offer. A pickle is read only from memory that a process of
        # this user on this machine has made for this purpose, and that is sealed against changes.
        name = str(Path(f"/proc/self/fd/{file.fileno()}").readlink())
        mine = os.fstat(file.fileno()).st_uid == os.geteuid()
        if name != f"/memfd:{_NAME} (deleted)" or not mine or not _sealed(file.fileno()):
            raise Fault(
                Exit.CODE,
                "data: another rank offered memory that is not this user's on this machine",
            )
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    index = int.from_bytes(memory[-_WORD:], "big")
    places = json.loads(memory[index:-_WORD])
    pickled, *elements = (memoryview(memory)[start:end] for start, end in places)
    return pickle.loads(pickled, buffers=elements)  # noqa: S301  # of this machine's rank 0


def _sealed(descriptor: int) -> bool:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == _SEALS
    except OSError:  # not a memfd
        return False


class _Pickler(pickle.Pickler):
    """Passes the elements of plain tensors in host memory as buffers outside the pickle."""

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
