"""The tasks of k8s/jobs/own_model, narrow, their windows short."""

import sys
from importlib import import_module
from pathlib import Path

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


def narrow(task: tokens.Task) -> tokens.Task:
    task.size = Size(width=32, heads=4, layers=3, length=32)
    task.files = of_bytes(32, size=20_000)
    return task
