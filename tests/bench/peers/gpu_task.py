"""What is trained on a GPU: ResNet-50 on pictures, the GPT of 124 million parameters on tokens.

TRAINER_TASK=tests.bench.peers.gpu_task:Pictures python -m trainer

The data is random. With BENCH_SMALL=1 the models and their data are small, to try the rows anywhere.
"""

import os
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.bench.peers.turn import STEPS, Turns
from trainer.config.settings import Settings
from trainer.data.sets import Tensors
from trainer.models.gpt import SIZES, Gpt
from trainer.tasks.parts.classification import Classification
from trainer.tasks.parts.next_token import NextToken
from trainer.tasks.parts.token_files import Windows
from trainer.tasks.parts.torchvision_models import build

SMALL = "BENCH_SMALL" in os.environ
_SIZE = SIZES["tiny" if SMALL else "124m"]
_VOCABULARY = 256 if SMALL else 50_304


def stepped(turns: Turns) -> None:
    """Count a step. The last step of a turn waits until the device has finished."""
    if (turns.done + 1) % STEPS == 0 and torch.cuda.is_available():
        torch.cuda.synchronize()
    turns.step()


class Counted:
    """Counts the steps of its step events, of which STEPS must be a multiple: one rank only."""

    def __init__(self, _: Settings) -> None:
        self._turns: Turns | None = None

    def on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "step":
            self._turns = self._turns or Turns()
            for _ in range(event["step"] - self._turns.done):
                stepped(self._turns)


class Pictures(Counted, Classification):
    def model(self) -> nn.Module:
        return build("resnet18" if SMALL else "resnet50", classes=1000)

    def data(self, **_: bool) -> Tensors:
        generator = torch.Generator().manual_seed(0)
        shape = (32, 3, 32, 32) if SMALL else (2048, 3, 224, 224)
        labels = torch.randint(1000, shape[:1], generator=generator)
        return Tensors(torch.randn(shape, generator=generator), labels)


class Text(Counted, NextToken):
    def model(self) -> nn.Module:
        return Gpt(_SIZE, vocabulary=_VOCABULARY, tied=True)

    def data(self, **_: bool) -> Windows:
        tokens = np.random.default_rng(0).integers(0, _VOCABULARY, 2**21, dtype=np.uint16)
        return Windows(tokens.tobytes(), "uint16", length=_SIZE.length, vocabulary=_VOCABULARY)
