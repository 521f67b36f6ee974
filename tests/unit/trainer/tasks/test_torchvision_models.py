"""Every classification model of torchvision as a model of imagefolder: built, and a step of it dry.

`make test-parity` tests all 80 in five minutes, `make test` one of each family.
"""

from typing import Any

import pytest
import torch
from torchvision import models

from tests.parity.table import WHOLE
from trainer.config.environment import from_environment, variable
from trainer.config.own_settings import ImageFolder
from trainer.config.settings import Settings
from trainer.data.sets import Tensors
from trainer.plan.sizing import size
from trainer.tasks import imagefolder
from trainer.tasks.parts import torchvision_models
from trainer.tools.fake_step import needs_of_ranks

NAMES = models.list_models(module=models)
A_FAMILY_EACH = ["alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet"]
A_FAMILY_EACH += ["inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v3_small", "regnet_y_16gf"]
A_FAMILY_EACH += ["shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "vgg11", "vit_b_32"]
# Their constructors compute with tensors, which fails for tensors without elements.
REAL = [name for name in NAMES if name.startswith("regnet")]


class Photographs(imagefolder.Task):
    """The task without a folder, for its models and a batch's shape."""

    def __init__(self, settings: Settings, own: ImageFolder | None = None) -> None:
        self._settings, self._own = settings, own or ImageFolder()
        self.classes = [*"abcdefg"]

    def data(self, *, train: bool) -> Tensors:  # noqa: ARG002
        size = self._settings.image_size
        return Tensors(torch.zeros(8, 3, size, size), torch.zeros(8, dtype=torch.long))


def test_all_are_known() -> None:
    assert len(NAMES) >= 80
    assert len(REAL) == 15


@pytest.mark.parametrize("name", sorted({*NAMES} - {*REAL}))
def test_it_is_built_without_its_weights(name: str) -> None:
    with torch.device("meta"):
        model = torchvision_models.build(name, classes=7)
    assert [*model.parameters()][-1].shape[0] == 7


@pytest.mark.parametrize(
    "name", ["resnet18", pytest.param("regnet_x_400mf", marks=pytest.mark.slow)]
)
def test_a_dry_run_takes_a_step(name: str) -> None:
    take_a_dry_step(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES if WHOLE else A_FAMILY_EACH)
def test_a_dry_run_takes_a_step_of_each(name: str) -> None:
    take_a_dry_step(name)


def take_a_dry_step(name: str) -> None:
    settings: dict[str, Any] = {"TASK": f"{__name__}:Photographs", "MODEL": name, "MODE": "ddp"}
    settings |= {"GLOBAL_BATCH": "4", "IMAGE_SIZE": "299" if name == "inception_v3" else "224"}
    made = from_environment({f"TRAINER_{key}": value for key, value in settings.items()})
    (need,) = needs_of_ranks(made, size(made, 2, label=variable))
    weights = models.get_model_weights(name).DEFAULT.meta["num_params"]
    assert 0.2 * weights < need.parameters / 4 < 1.01 * weights  # it has 7 classes for its 1,000
    assert need.activations > 0
