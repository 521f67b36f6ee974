"""The digest of a tensor, of any dtype and size; the state of a module before a forward pass."""

import pytest
import torch
from torch import nn

from trainer.distributed.tensors import Kept, digest, map_tensors


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


class Outputs(dict[str, torch.Tensor]):
    """Outputs with attributes, as models of transformers have them."""

    @property
    def logits(self) -> torch.Tensor:
        return self["logits"]


def test_what_is_mapped_stays_of_its_class() -> None:
    before = Outputs(logits=torch.ones(2))
    after = map_tensors(lambda tensor: tensor * 2, before)
    assert isinstance(after, Outputs)
    assert after.logits.tolist() == [2, 2]
    assert before.logits.tolist() == [1, 1]


class Changing(nn.Module):
    """Changes one buffer in place, replaces another by a longer one, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("cache", torch.zeros(2))
        self.register_buffer("still", torch.zeros(2))
        self.passes, self.last = 0, 3.0

    def forward(self) -> None:
        self.get_buffer("mean").add_(1)
        self.cache = torch.ones(5)
        self.passes, self.last = self.passes + 1, 4.0


def test_what_a_forward_pass_changes_is_set_back() -> None:
    model = Changing()
    before = dict(model.named_buffers())
    kept = Kept(model)
    model.eval()
    model()
    assert kept.restore() == [True, True, False]
    assert all(now is before[name] and not now.any() for name, now in model.named_buffers())
    assert (model.passes, model.last, model.training) == (0, 3.0, True)
    assert kept.restore() == [False, False, False]
