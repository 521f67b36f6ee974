"""Read tensors of a checkpoint, whole or in part, without torch.distributed.checkpoint.

The whole ones are for an export, which would spend a third of its time on that import.

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
            read_into(result[place], file, stored, chunk, (0,) * len(chunk.sizes))
    return result


def read_into(
    target: torch.Tensor, file: BinaryIO, tensor: Tensor, chunk: Chunk, offsets: Sequence[int]
) -> None:
    """Read the part of a chunk that begins at `offsets` and has the shape of `target`, into it."""
    dtype, sizes = DTYPES[tensor.dtype], tuple(target.shape)
    first, count = (offsets[0], sizes[0]) if sizes else (0, 1)  # a scalar is one row
    row_shape = chunk.sizes[1:]
    if not math.prod(sizes):
        return
    rows = target
    # Where rows are whole they need no copy: half the time of loading.
    as_stored = sizes[1:] == row_shape and target.dtype == dtype and target.device.type == "cpu"
    if not (as_stored and target.is_contiguous()):
        rows = torch.empty((count, *row_shape), dtype=dtype)
    data = rows.reshape(-1).view(torch.uint8).numpy().data
    file.seek(chunk.start + first * math.prod(row_shape) * dtype.itemsize)
    if file.readinto(data) != len(data):  # type: ignore[attr-defined]  # every binary file has it
        raise EOFError(f"{chunk.file} ended early")
    if rows is target:
        return
    rows = rows if sizes else rows[0]
    for axis in range(1, len(sizes)):
        rows = rows.narrow(axis, offsets[axis], sizes[axis])
    target.copy_(rows)
