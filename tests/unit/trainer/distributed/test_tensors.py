"""The digest of a tensor, of any dtype and size, changes with it and not otherwise."""

import pytest
import torch

from trainer.distributed.tensors import digest


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.bool,
    ],
    ids=str,
)
def test_a_digest_changes_with_the_tensor(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 4).to(dtype)
    before = digest(tensor)
    assert digest(tensor.clone()) == before
    tensor[1, 2] = 0
    assert digest(tensor) != before
    assert digest(tensor[:, :0]) == digest(tensor[:0])
