"""Models as chains: the chain equals the forward pass and has every parameter once."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer import tasks
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.models import chain

PIECES = {"digits": 4, "synthetic": 2, "charlm-lstm": 4, "charlm-gru": 4, "charlm-gpt": 4}


@pytest.mark.parametrize(("name", "count"), PIECES.items())
def test_a_built_in_model_is_its_chain(name: str, count: int) -> None:
    task = tasks.load(Settings(task=name))
    torch.manual_seed(0)
    model = task.model()
    inputs, _ = task.data(train=True).batch(torch.arange(3))
    pieces = chain.pieces_of(model)
    assert len(pieces) == count
    assert torch.equal(chain.run(pieces, inputs), model(inputs))


def test_a_resnet_is_cut_between_its_blocks() -> None:
    from torchvision.models import resnet18

    model = resnet18(num_classes=10).eval()
    pieces = chain.pieces_of(model)
    assert [piece.modules[-1] for piece in pieces][1:3] == ["layer1.0", "layer1.1"]
    assert len(pieces) == 1 + 8 + 1
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(chain.run(pieces, images), model(images))


def test_a_piece_without_parameters_goes_with_its_neighbour() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.0), nn.Linear(4, 2)
    )
    pieces = chain.pieces_of(model)
    assert [piece.modules for piece in pieces] == [("0", "1", "2", "3"), ("4",)]
    inputs = torch.randn(3, 2, 2)
    assert torch.equal(chain.run(pieces, inputs), model(inputs))


class Forgetful(nn.Linear):
    def chain(self) -> chain.Chain:
        return []


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight

    def chain(self) -> chain.Chain:
        return [(("first",), self.first), (("second",), self.second)]


class Given(nn.Linear):
    """Has a chain that a user may write by mistake."""

    def __init__(self, given: Any) -> None:
        super().__init__(2, 2)
        self.first, self.given = nn.Linear(2, 2), given

    def chain(self) -> Any:
        return self.given(self)


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Whole(), "model Whole cannot be cut into stages: it has no method chain()"),
        (Forgetful(2, 2), "model Forgetful: 0 of its pieces have weight"),
        (Tied(), "model Tied: 2 of its pieces have first.weight"),
        (
            Given(lambda m: m.second),
            "its chain() raised AttributeError: 'Given'",
        ),
        (Given(lambda _: None), "its chain() raised TypeError: 'NoneType' object is not iterable"),
        (
            Given(lambda m: [m.first]),
            "itself a tuple, and a callable, not Linear(",
        ),
        (
            Given(lambda m: [("first", m.first)]),
            "itself a tuple, and a callable, not ('first', ",
        ),
        (
            Given(lambda m: [(("fist",), m)]),
            "chain() has 'fist', which is no submodule of the model",
        ),
        (nn.ModuleDict({"chain": nn.Linear(2, 2)}), "it has no method chain()"),
    ],
)
def test_a_model_that_cannot_be_cut_is_64(model: nn.Module, message: str) -> None:
    with pytest.raises(Fault) as caught:
        chain.pieces_of(model)
    assert caught.value.code == Exit.CONFIG
    assert message in str(caught.value)
