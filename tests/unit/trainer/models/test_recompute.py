"""Activation checkpointing: less is kept for the backward pass, under the same names."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trainer.models.recompute import recompute_blocks
from trainer.tasks.charlm_gpt import Model


def test_less_is_kept_and_names_and_gradients_stay() -> None:
    text = torch.randint(256, (4, 64), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    plain = Model()
    recomputing = Model()
    recomputing.load_state_dict(plain.state_dict())
    recompute_blocks(recomputing)
    assert recomputing.state_dict().keys() == plain.state_dict().keys()
    assert [type(module).__name__ for module in plain.modules()] == [
        type(module).__name__ for module in recomputing.modules()
    ]
    assert _kept(recomputing, text) < 0.5 * _kept(plain, text)
    for one, other in zip(plain.parameters(), recomputing.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def _kept(model: nn.Module, text: Tensor) -> int:
    """Return the bytes that the forward pass keeps for the backward pass, and run both."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(text).square().mean()
    kept = sum(sizes.values())
    loss.backward()
    return kept


class Counts(nn.Linear):
    count = 0

    def forward(self, values: Tensor) -> Tensor:
        self.count += 1
        return super().forward(values).relu() / (1 + self.count % 3)


class Replaces(nn.Linear):
    """Subtracts a running mean, which each pass replaces."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.mean: Tensor

    def forward(self, values: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * values.detach().mean(dim=0)
        return super().forward(values - self.mean).relu()


class Changes(Replaces):
    """The same with a mean that each pass changes in place."""

    def forward(self, values: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * values.detach().mean(dim=0))
        return nn.Linear.forward(self, values - self.mean.clone()).relu()


class Teaches(nn.Linear):
    """Has a frozen weight that follows the trained one."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.teacher = nn.Parameter(torch.zeros(8, 8), requires_grad=False)

    def forward(self, values: Tensor) -> Tensor:
        self.teacher.data.lerp_(self.weight.data, 0.1)
        return super().forward(values).relu() + values @ self.teacher.clone()


class Norms(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), nn.BatchNorm1d(8))


class Layered(nn.Module):
    def __init__(self, kind: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)
        self.layers = nn.ModuleList([kind(), kind()])

    def forward(self, values: Tensor) -> Tensor:
        values = self.first(values)
        for layer in self.layers:
            values = layer(values)
        outputs: Tensor = self.last(values)
        return outputs


@pytest.mark.parametrize("kind", [lambda: Counts(8, 8), Replaces, Changes, Teaches, Norms])
def test_a_second_pass_computes_what_the_first_did(kind: Callable[[], nn.Module]) -> None:
    """Also if a block is used twice before the backward pass, as in a pipeline."""
    torch.manual_seed(0)
    plain = Layered(kind)
    recomputing = copy.deepcopy(plain)
    recompute_blocks(recomputing)
    for step in range(3):
        for model in (plain, recomputing):
            values = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
            both = model(values), model(values + 1)
            (both[0].square().mean() + both[1].square().mean()).backward()
    one, other = plain.state_dict(), recomputing.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    gradients = [[p.grad for p in m.parameters() if p.requires_grad] for m in (plain, recomputing)]
    assert all(map(torch.equal, *gradients))
    counts = [[vars(part).get("count") for part in m.layers] for m in (plain, recomputing)]
    assert counts[0] == counts[1]
