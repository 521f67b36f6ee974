"""Read tensors of a checkpoint, whole or in part, without torch.distributed.checkpoint.

The export reads whole tensors this way; it would spend a third of its time on that import.

weights = {key: whole(found, key) for key in found.manifest.tensors}
"""

import math
from collections.abc import Sequence
from typing import BinaryIO

import torch

from trainer.checkpoint.find import Found
from trainer.checkpoint.manifest import DTYPES, Chunk, Tensor


def whole(found: Found, key: str) -> torch.Tensor:
    """Return one whole tensor of a checkpoint, on the CPU."""
    stored = found.manifest.tensors[key]
    result = torch.empty(stored.shape, dtype=DTYPES[stored.dtype])
    for chunk in stored.chunks:
        place = tuple(
            slice(offset, offset + size)
            for offset, size in zip(chunk.offsets, chunk.sizes, strict=True)
        )
        with found.store.open(found.name, chunk.file) as file:
            result[place] = read_part(file, stored, chunk, (0,) * len(chunk.sizes), chunk.sizes)
    return result


def read_part(
    file: BinaryIO, tensor: Tensor, chunk: Chunk, offsets: Sequence[int], sizes: Sequence[int]
) -> torch.Tensor:
    """Return the part of a chunk with `sizes`, at `offsets`; read only its rows."""
    dtype = DTYPES[tensor.dtype]
    first, count = (offsets[0], sizes[0]) if sizes else (0, 1)  # a scalar is one row
    row = math.prod(chunk.sizes[1:]) * dtype.itemsize
    data = bytearray(count * row)
    if not data:
        return torch.empty(tuple(sizes), dtype=dtype)
    file.seek(chunk.start + first * row)
    if file.readinto(data) != len(data):  # type: ignore[attr-defined]  # every binary file has it
        raise EOFError(f"{chunk.file} ended early")
    part = torch.frombuffer(data, dtype=dtype).view((count, *chunk.sizes[1:]) if sizes else ())
    for axis in range(1, len(sizes)):
        part = part.narrow(axis, offsets[axis], sizes[axis])
    return part
