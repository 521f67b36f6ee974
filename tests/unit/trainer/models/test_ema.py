"""Averaged weights: used within the block; after it everything is as before."""

import torch
from torch import nn

from trainer.models.ema import Average


class Replaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("cache", torch.zeros(2))


def test_a_buffer_may_be_replaced() -> None:
    model = Replaces()
    average = Average(model, 0.75)
    model.mean, model.cache = torch.full((2,), 4.0), torch.ones(3)  # a cache may grow
    average.update()
    assert average.state_dict()["mean"].tolist() == [1, 1]
    with average.in_use():
        assert model.mean.tolist() == [1, 1]
    assert model.mean.tolist() == [4, 4]
    assert model.cache.tolist() == [1, 1, 1]


def test_a_buffer_that_is_not_finite_is_taken_as_it_is() -> None:
    model, inf = Replaces(), float("inf")
    model.mean = torch.tensor([-inf, 0.0])  # as of a causal mask
    average = Average(model, 0.75)
    average.update()
    assert average.state_dict()["mean"].tolist() == [-inf, 0]
    model.mean = torch.tensor([4.0, -inf])
    average.update()
    assert average.state_dict()["mean"].tolist() == [4, -inf]


def test_tied_weights_are_averaged_and_swapped_once() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(3, 3), nn.Linear(3, 3)
    model = nn.Sequential(first, nn.BatchNorm1d(3), last)
    last.weight = first.weight
    average = Average(model, 0.75)
    before = first.weight.detach().clone()
    with torch.no_grad():
        first.weight += 4
    average.update()
    assert average.state_dict().keys() == {
        name for name, tensor in model.state_dict().items() if tensor.is_floating_point()
    }
    with average.in_use():
        torch.testing.assert_close(model[0].weight, before + 1)
    torch.testing.assert_close(model[0].weight, before + 4)
    torch.testing.assert_close(average.state_dict()["2.weight"], before + 1)
