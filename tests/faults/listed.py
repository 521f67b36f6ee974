"""A task that records which samples were used."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.config.settings import Settings
from trainer.data.sets import Tensors
from trainer.tasks import synthetic


class Listed(synthetic.Task):
    """Writes the samples of each call of `loss` to the file LISTED, after LISTED_PAUSE seconds.

    With LISTED_FAILS, that call raises.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._calls = 0

    def data(self, *, train: bool) -> Tensors:
        whole = super().data(train=train)
        return replace(whole, targets=torch.arange(len(whole)))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self._calls += 1
            if str(self._calls) == os.environ.get("LISTED_FAILS"):
                raise ValueError("enough of it")
            time.sleep(float(os.environ.get("LISTED_PAUSE", "0")))
            with Path(os.environ["LISTED"]).open("a") as file:
                file.write("".join(f"{target}\n" for target in targets.tolist()))
        return super().loss(outputs, targets % 10)

    def score(self, outputs: Tensor, targets: Tensor) -> Any:
        return super().score(outputs, targets % 10)
