"""Which modules are sharded, recomputed and compiled as units."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torchvision.models as vision
from torch import nn

from trainer import tasks
from trainer.config.settings import Settings
from trainer.engine.build import model_of
from trainer.models.blocks import blocks, tied
from trainer.models.gpt import SIZES, Gpt


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))


class Wrapped(nn.Module):
    """A model in a model, as transformers has them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.model = inner
        self.head = nn.Linear(4, 2)
        self.loss = nn.CrossEntropyLoss()


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm = nn.LayerNorm(4)


class Halves(nn.Module):
    """Two stacks of one kind, with one embedding, as T5 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(5, 4)
        self.encoder, self.decoder = Stack(), Stack()
        self.encoder.words = self.decoder.words = self.shared


CASES: list[tuple[Callable[[], nn.Module], dict[str, int]]] = [
    (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), {"Linear": 2}),
    (Stack, {"Layer": 3, "LayerNorm": 1}),
    (lambda: Wrapped(Wrapped(Stack())), {"Layer": 3, "LayerNorm": 1, "Linear": 2}),
    (Halves, {"Layer": 6, "LayerNorm": 2, "Embedding": 1}),
    (
        lambda: Wrapped(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))),
        {"Sequential": 1, "Linear": 1},
    ),
    (vision.resnet18, {"Conv2d": 1, "BatchNorm2d": 1, "BasicBlock": 8, "Linear": 1}),
    (vision.vit_b_16, {"Conv2d": 1, "EncoderBlock": 12, "LayerNorm": 1, "Sequential": 1}),
    (
        vision.swin_t,
        {
            "Sequential": 1,
            "SwinTransformerBlock": 12,
            "PatchMerging": 3,
            "LayerNorm": 1,
            "Linear": 1,
        },
    ),
    (vision.efficientnet_b0, {"Conv2dNormActivation": 2, "MBConv": 14, "Sequential": 3}),
]


@pytest.mark.parametrize(("build", "kinds"), CASES)
def test_layers_are_found_wherever_a_model_keeps_them(
    build: Callable[[], nn.Module], kinds: dict[str, int]
) -> None:
    with torch.device("meta"):
        model = build()
    found = blocks(model)
    counted = Counter(type(block).__name__ for block in found)
    assert counted == kinds
    # No module is in two blocks.
    parts = Counter(id(part) for block in found for part in block.modules())
    assert set(parts.values()) == {1}


def test_tied_parameters_have_all_their_names() -> None:
    assert tied(Gpt(SIZES["tiny"], vocabulary=256)) == {}
    (names,) = tied(Gpt(SIZES["tiny"], vocabulary=256, tied=True)).values()
    assert names == ["tokens.weight", "head.weight"]
    (three,) = tied(Halves()).values()
    assert three == ["shared.weight", "encoder.words.weight", "decoder.words.weight"]


def test_those_that_a_task_names_are_its_models_blocks_also_once_it_is_cut() -> None:
    settings = Settings(task="tests.parity.own_tasks:SixBlocks")
    model = model_of(tasks.load(settings), settings)
    assert blocks(model) == [*model.get_submodule("1").children()]
    half = nn.Sequential(*[*model.get_submodule("1").children()][:3], model.get_submodule("2"))
    assert blocks(half) == [*half][:3]
