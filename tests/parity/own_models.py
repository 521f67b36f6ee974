"""The tasks of k8s/jobs/own_model, narrow, their windows short; and those of GPTs as they are."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path

from torch import nn
from torchvision.models import VisionTransformer

from tests.conftest import ROOT
from trainer.config.settings import Settings
from trainer.models.gpt import Size
from trainer.tasks import tokens
from trainer.tasks.parts.token_files import of_bytes

# transformers is none of our packages: `make frameworks` has it in an environment of its own.
PLACES = [
    str(ROOT / "k8s/jobs/own_model"),
    str(Path(__file__).parent / "nanogpt_layout"),
    *map(str, (ROOT / "build/frameworks").glob("lib/python3*/site-packages")),
]


def nano_gpt(settings: Settings) -> tokens.Task:
    return narrow(made("nanogpt", settings))


def gpt2(settings: Settings) -> tokens.Task:
    return narrow(made("gpt2", settings))


def made(module: str, settings: Settings) -> tokens.Task:
    """Return an example's task; a rank of the tests' pool begins each case with its first path."""
    sys.path += [place for place in PLACES if place not in sys.path]
    task: tokens.Task = import_module(module).Task(settings)
    return task


whole_nano_gpt = partial(made, "nanogpt")
whole_gpt2 = partial(made, "gpt2")


def by_hand(model: nn.Module) -> list[nn.Module]:
    """Return what one who knows the model would shard each as a whole."""
    if isinstance(model, VisionTransformer):
        return [model.conv_proj, *model.encoder.layers, model.encoder.ln, model.heads]
    model = getattr(model, "inner", model)
    parts = model.get_submodule("transformer")
    ends = [parts.get_submodule(name) for name in ("wte", "wpe", "ln_f")]
    return [*ends, *parts.get_submodule("h").children(), model.get_submodule("lm_head")]


def narrow(task: tokens.Task) -> tokens.Task:
    task.size = Size(width=32, heads=4, layers=3, length=32)
    task.files = of_bytes(32, size=20_000)
    return task
