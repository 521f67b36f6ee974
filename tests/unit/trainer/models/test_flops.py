"""Operations of a forward and backward pass: as counted by hand, and the model does not change."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.models.flops import count

SAMPLES = 3


def linear(features: int, out: int, *, first: bool = False) -> int:
    """Return two operations a weight and sample: forward, for the weights, and for what came before."""
    return (2 if first else 3) * 2 * SAMPLES * features * out


class Tied(nn.Module):
    """The head has the embedding's weights; a lookup does not count as an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.embedding(words))}


CASES: dict[str, tuple[nn.Module, Tensor, int]] = {
    "two layers": (
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6)),
        torch.zeros(SAMPLES, 4),
        linear(4, 5, first=True) + linear(5, 6),
    ),
    "a frozen layer": (
        nn.Sequential(nn.Linear(4, 5).requires_grad_(False), nn.Linear(5, 6)),
        torch.zeros(SAMPLES, 4),
        linear(4, 5, first=True) // 2 + linear(5, 6, first=True),
    ),
    "a convolution, and a norm with buffers": (
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Dropout()),
        torch.zeros(SAMPLES, 1, 8, 8),
        2 * 2 * SAMPLES * (8 * 8) * (3 * 3) * 2,
    ),
    "tied weights": (Tied(), torch.zeros(SAMPLES, dtype=torch.long), linear(8, 50)),
}


class Masked(nn.Linear):
    mask: Tensor | None = None

    def forward(self, values: Tensor) -> Tensor:
        self.mask = torch.ones(5) if self.mask is None else self.mask
        return super().forward(values)


def test_what_a_forward_pass_keeps_is_not_kept_in_the_model() -> None:
    model = Masked(4, 5)
    assert count(model, torch.zeros(SAMPLES, 4), dtype=torch.float32) == linear(4, 5, first=True)
    assert model.mask is None


@pytest.mark.parametrize("name", CASES)
def test_it_counts_by_hand_and_leaves_the_model_as_it_was(name: str) -> None:
    model, inputs, expected = CASES[name]
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert count(model, inputs, dtype=torch.float32) == expected
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_it_ends_after_its_time() -> None:
    with pytest.raises(TimeoutError, match="it takes too long"):
        count(nn.LSTM(8, 8), torch.zeros(500, 1, 8), dtype=torch.float32, limit=0.05)


class Looks(nn.Linear):
    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs) if inputs.sum() > 0 else inputs


@pytest.mark.parametrize("model", [Looks(4, 4), nn.Identity()], ids=["values", "no gradient"])
def test_a_model_that_needs_values_or_has_nothing_to_train_raises(model: nn.Module) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        count(model, torch.ones(SAMPLES, 4), dtype=torch.float32)
