"""Your own task: three arms of a spiral in the plane, which a small network learns to separate.

08-own-task.yaml trains it; TRAINER_TASK=spirals:Spirals with this folder on PYTHONPATH does so by hand.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config.settings import Settings
from trainer.data.sets import Tensors

_ARMS = 3
_TRAIN, _TEST = 3000, 600


class Spirals:
    metric = "accuracy"

    def __init__(self, settings: Settings) -> None:
        """Keep what the task needs of the settings: here nothing."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, _ARMS)
        )

    def data(self, *, train: bool) -> Tensors:
        """Return points, shape (n, 2), and the arm of each."""
        count = _TRAIN if train else _TEST
        generator = torch.Generator().manual_seed(int(train))
        arms = torch.arange(count) % _ARMS
        radius = 0.1 + torch.rand(count, generator=generator)
        angle = 2 * math.pi * arms / _ARMS + 4 * radius
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
        return Tensors(points + 0.01 * torch.randn(count, 2, generator=generator), arms)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one loss per sample; the trainer takes the mean over the global batch."""
        return F.cross_entropy(outputs, targets, reduction="none")

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one score per sample: 1.0 where the arm is right."""
        return (outputs.argmax(dim=1) == targets).float()
