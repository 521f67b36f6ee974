"""Values from rank to rank, as JSON, so that no rank of the group can send a pickle that runs code.

newest = from_main(newest, runtime, str | None)
"""

import json
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.distributed.runtime import Runtime

_T = TypeVar("_T")
_MOST = 64 << 20  # bytes of a message


def from_main(value: _T, runtime: Runtime, kind: Any) -> _T:
    """Return the main rank's `value`, of the type `kind`, on every rank."""
    if runtime.control is None:
        return value
    sent = _as_bytes(value, kind)
    size = torch.tensor([len(sent)])
    dist.broadcast(size, src=0, group=runtime.control)
    data = _room(0, int(size))
    if runtime.is_main:
        data.copy_(sent)
    dist.broadcast(data, src=0, group=runtime.control)
    received: _T = _value(0, data, kind)
    return received


def from_all(value: _T, runtime: Runtime, kind: Any) -> list[_T]:
    """Return every rank's `value`, of the type `kind`, by rank, on every rank."""
    if runtime.control is None:
        return [value]
    sent = _as_bytes(value, kind)
    sizes = list(torch.zeros(runtime.world_size, dtype=torch.int64).split(1))
    dist.all_gather(sizes, torch.tensor([len(sent)]), group=runtime.control)
    lengths = [int(size) for size in sizes]
    longest = max(len(_room(rank, length)) for rank, length in enumerate(lengths))
    padded = torch.nn.functional.pad(sent, (0, longest - len(sent)))
    parts = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(parts, padded, group=runtime.control)
    return [
        _value(rank, part[:length], kind)
        for rank, (part, length) in enumerate(zip(parts, lengths, strict=True))
    ]


_adapter = cache(TypeAdapter)


def _as_bytes(value: Any, kind: Any) -> Tensor:
    text = json.dumps(_adapter(kind).dump_python(value, mode="json")).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _room(rank: int, size: int) -> Tensor:
    """Return memory for a message. Raises Fault(70) for a size that no message of ours has."""
    if not 0 < size <= _MOST:
        raise Fault(
            Exit.CODE, f"rank {rank} sends a message of {size} bytes; at most {_MOST} are allowed"
        )
    return torch.empty(size, dtype=torch.uint8)


def _value(rank: int, data: Tensor, kind: Any) -> Any:
    """Return the value of a message. Raises Fault(70) if it is not a message of ours."""
    try:
        return _adapter(kind).validate_python(json.loads(bytes(data.numpy())))
    except (ValueError, RecursionError) as error:  # of json and pydantic
        reason = str(error).partition("\n")[0]
        raise Fault(
            Exit.CODE, f"rank {rank} sends a message that cannot be read: {reason}"
        ) from error
