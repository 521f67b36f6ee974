"""Photographs of ten kinds of things, 50,000 images of 32x32: CIFAR-10 (Krizhevsky, 2009).

TRAINER_TASK=cifar10 TRAINER_DATA=data TRAINER_DOWNLOAD=1 python -m trainer
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config.settings import Settings
from trainer.data.augment import Augmentation
from trainer.tasks.parts import cifar_files, torchvision_models
from trainer.tasks.parts.classification import Classification
from trainer.tasks.parts.images import Images, data_folder

DEFAULTS = {"epochs": 2, "global_batch": 64}
MEASURED = "52 s (on made-up images of the same size)"
NEEDS_DATA = True

_FOLDER = Path("cifar-10-batches-py")
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Net(nn.Module):
    """Three convolutions, each halving the image, and a linear layer. Returns logits."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, kernel_size=3, padding=1)
        self.head = nn.Linear(2 * width * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, shape (n, 3, 32, 32), to logits, shape (n, 10)."""
        x = images
        for conv in (self.conv1, self.conv2, self.conv3):
            x = F.relu(F.max_pool2d(conv(x), 2))
        logits: Tensor = self.head(x.flatten(1))
        return logits


class Task(Classification):
    """TRAINER_MODEL may name a torchvision model to train instead of the small net."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def model(self) -> nn.Module:
        name = self._settings.model
        return Net() if name is None else torchvision_models.build(name, classes=10)

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        """Return `count` inputs and targets for a dry run, which needs no files."""
        return torch.zeros(count, 3, 32, 32), torch.zeros(count, dtype=torch.long)

    def data(self, *, train: bool) -> Images:
        """Return images, shape (n, 3, 32, 32), uint8, and labels 0 to 9.

        Training images are shifted by up to 4 pixels, and half of them are flipped left to right.
        """
        folder = data_folder(self._settings, _FOLDER, data_set="CIFAR10")
        names = [f"data_batch_{n}" for n in range(1, 6)] if train else ["test_batch"]
        parts = [cifar_files.read(folder / name) for name in names]
        images = torch.cat([images for images, _ in parts])
        labels = torch.cat([labels for _, labels in parts])
        return Images(images, labels, Augmentation(32, _MEAN, _STD, padding=4, flip=True))
