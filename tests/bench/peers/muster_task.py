"""Digits in the trainer, which takes turns with its peers.

TRAINER_TASK=tests.bench.peers.muster_task:Task python -m trainer
"""

from typing import Any

from torch import Tensor

from tests.bench.peers.turn import Turns
from trainer.config.settings import Settings
from trainer.tasks import digits


class Task(digits.Task):
    """Counts the losses that are trained with: every rank has one in each micro-batch."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._turns: Turns | None = None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.requires_grad:
            if self._turns is None:
                self._turns = Turns()
            self._turns.step()
        return super().loss(outputs, targets)


class ByEvents(digits.Task):
    """Counts the steps of its step events; compiled code calls no loss. One rank only."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._turns: Turns | None = None
        self._seen = 0

    def on_event(self, event: dict[str, Any]) -> None:
        if event["event"] != "step":
            return
        if self._turns is None:
            self._turns = Turns()
        for _ in range(event["step"] - self._seen):
            self._turns.step()
        self._seen = event["step"]
