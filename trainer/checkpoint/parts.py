"""Read tensors of a checkpoint, whole or in part, without torch.distributed.checkpoint.

The export reads whole tensors this way; it would spend a third of its time on that import.

weights = {key: whole(found, key) for key in found.manifest.tensors}
"""

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
            read_part(
                file, result[place], stored=stored, chunk=chunk, offsets=(0,) * len(chunk.sizes)
            )
    return result


def read_part(
    file: BinaryIO, target: torch.Tensor, *, stored: Tensor, chunk: Chunk, offsets: Sequence[int]
) -> None:
    """Fill `target` with the part of a chunk of its size, at `offsets`; read only its rows."""
    dtype, sizes = DTYPES[stored.dtype], target.shape
    first, count = (offsets[0], sizes[0]) if sizes else (0, 1)  # a scalar is one row
    # Whole rows of the same type are read into the target itself: a copy would take as long as reading.
    is_direct = (
        (target.device.type, target.dtype) == ("cpu", dtype)
        and target.is_contiguous()
        and sizes[1:] == chunk.sizes[1:]
    )
    shape = (count, *chunk.sizes[1:]) if sizes else ()
    rows = target if is_direct else torch.empty(shape, dtype=dtype)
    if not rows.numel():
        return
    data = rows.as_strided((rows.numel(),), (1,)).view(torch.uint8).numpy()
    file.seek(chunk.start + first * (data.nbytes // count))
    if file.readinto(data) != data.nbytes:  # type: ignore[attr-defined]  # every binary file has it
        raise EOFError(f"{chunk.file} ended early")
    if not is_direct:
        for axis in range(1, len(sizes)):
            rows = rows.narrow(axis, offsets[axis], sizes[axis])
        target.copy_(rows)
