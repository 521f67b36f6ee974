"""Random vectors around ten centres: can be learned, and needs no files and no download.

TRAINER_TASK=synthetic python -m trainer
"""

import torch
from torch import nn

from trainer.config.settings import Settings
from trainer.data.sets import Tensors
from trainer.tasks.parts.classification import Classification

CUTS = 2

_FEATURES = 64
_CLASSES = 10
_TRAIN, _TEST = 4096, 1024
_NOISE = 2.0  # relative to the scale of the centres: the classes overlap a little


class Task(Classification):
    def __init__(self, _: Settings) -> None:
        pass

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(_FEATURES, 128), nn.ReLU(), nn.Linear(128, _CLASSES))

    def data(self, *, train: bool) -> Tensors:
        """Return vectors, shape (n, 64), and for each the class of its centre."""
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(_CLASSES, _FEATURES, generator=generator)
        labels = torch.randint(_CLASSES, (_TRAIN + _TEST,), generator=generator)
        noise = torch.randn(len(labels), _FEATURES, generator=generator)
        vectors = centres[labels] + _NOISE * noise
        chosen = slice(0, _TRAIN) if train else slice(_TRAIN, None)
        return Tensors(vectors[chosen], labels[chosen])
