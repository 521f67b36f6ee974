"""`read_part`: any part of a chunk, of any type, equals what was stored."""

import io
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from trainer.checkpoint.manifest import Chunk, Tensor
from trainer.checkpoint.parts import read_part

BEFORE = 7  # bytes of the file before the chunk


def stored(values: torch.Tensor) -> tuple[io.BytesIO, Tensor, Chunk]:
    """Return a file with the values as one chunk, and the manifest's entry for them."""
    flat = values.contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    shape = tuple(values.shape)
    chunk = Chunk(offsets=(0,) * len(shape), sizes=shape, file="rank-00000.data", start=BEFORE)
    name = str(values.dtype).removeprefix("torch.")
    return io.BytesIO(bytes(BEFORE) + data), Tensor(dtype=name, shape=shape, chunks=(chunk,)), chunk


@given(st.data())
def test_a_part_is_what_was_stored_there(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), max_size=3), label="shape")
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    values = torch.randn(shape).to(dtype)
    offsets = [data.draw(st.integers(0, size - 1)) for size in shape]
    sizes = [data.draw(st.integers(0, size - at)) for size, at in zip(shape, offsets, strict=True)]
    part = values
    for axis, (at, size) in enumerate(zip(offsets, sizes, strict=True)):
        part = part.narrow(axis, at, size)
    file, tensor, chunk = stored(values)
    target = torch.full_like(part, 7, dtype=data.draw(st.sampled_from([dtype, torch.float64])))
    if data.draw(st.booleans(), label="not contiguous"):
        target = torch.stack([target, target], dim=-1)[..., 0]
    read_part(file, target, stored=tensor, chunk=chunk, offsets=offsets)
    assert target.equal(part.to(target.dtype))


def test_a_file_that_ends_early_is_no_tensor() -> None:
    file, tensor, chunk = stored(torch.ones(4))
    file.truncate(BEFORE + 15)
    with pytest.raises(EOFError, match=r"rank-00000\.data ended early"):
        read_part(file, torch.empty(4), stored=tensor, chunk=chunk, offsets=(0,))
