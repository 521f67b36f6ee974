"""Digits, or the tiny GPT, in the trainer, as a contender that takes turns.

TRAINER_TASK=tests.bench.peers.muster_task:Task python -m trainer
"""

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.bench.peers.gpu_task import Counted
from tests.bench.peers.turn import Turns
from trainer.config.own_settings import Tokens
from trainer.config.settings import Settings
from trainer.tasks import digits, tokens


def count_steps() -> None:
    """Count each step of this rank's optimiser, whatever the mode."""
    turns: list[Turns] = []  # from the first step on: a task is made before its process is a rank

    def stepped(*_: object) -> None:
        if not turns:
            turns.append(Turns())
        turns[0].step()

    register_optimizer_step_post_hook(stepped)


class Task(digits.Task):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        count_steps()


class Large(Task):
    """With a net of 13 M parameters: a checkpoint has 100 MB."""

    def model(self) -> nn.Module:
        layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(11)]
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 1024), *layers, nn.Linear(1024, 10))


class Gpt(tokens.Task):
    def __init__(self, settings: Settings, own: Tokens | None = None) -> None:
        super().__init__(settings, own)
        count_steps()


class ByEvents(Counted, digits.Task):
    """Compiled code calls no optimiser."""
