"""TRAINER_COMPILE=true: the graphs to which the blocks of a model are compiled."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.engine.build import compile_blocks
from trainer.models.recompute import recompute_blocks

pytestmark = pytest.mark.slow


class _Block(nn.Module):
    """Halves the length of its input when it makes it wider, like ResNet's blocks."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Conv1d(inputs, outputs, 1, stride=1 if inputs == outputs else 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Records for each graph whether its sizes are dynamic; the graph runs uncompiled, to save time."""
    found: list[bool] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append(any(isinstance(one, torch.SymInt) for one in inputs))
        return graph.forward

    counted = functools.partialmethod(nn.Module.compile, backend=count)
    monkeypatch.setattr(nn.Module, "compile", counted)
    torch.compiler.reset()
    yield found
    torch.compiler.reset()


WIDTHS = [8, 16, 24, 32, 40, 48]
PAIRS = [pair for to in itertools.pairwise(WIDTHS) for pair in (to, (to[1], to[1]))]


def test_blocks_of_other_widths_have_graphs_of_fixed_sizes(graphs: list[bool]) -> None:
    """By default torch.compile makes at most eight graphs, most of them with dynamic sizes."""
    model = nn.Sequential(*(_Block(*pair) for pair in PAIRS))
    compile_blocks(model, split=False)
    for is_training in (True, False):
        with torch.set_grad_enabled(is_training):
            model.train(is_training)(torch.ones(4, 8, 256))
    assert graphs == [False] * 2 * len(PAIRS)


def test_layers_that_tp_splits_are_left_to_torch_compile(graphs: list[bool]) -> None:
    model = nn.Sequential(*(_Block(*pair) for pair in PAIRS))
    compile_blocks(model, split=True)
    model(torch.ones(4, 8, 256))
    assert any(graphs)  # at least one has dynamic sizes


@pytest.mark.parametrize("recomputed", [False, True])
def test_equal_blocks_share_graphs_and_other_lengths_of_the_data_share_one(
    *, recomputed: bool, graphs: list[bool]
) -> None:
    model = nn.Sequential(*(_Block(8, 8) for _ in range(12)))
    if recomputed:
        recompute_blocks(model)
    compile_blocks(model, split=False)
    for length in (4, 5, 6, 7):
        model(torch.ones(4, 8, length))
    assert graphs == [False, False, True, True]  # the first block's input has no gradient
