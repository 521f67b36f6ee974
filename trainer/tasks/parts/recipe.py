"""Augmentation of photographs as in torchvision's reference training, with torchvision's transforms.

The loader seeds torch's generator with a sample's key before it reads the sample. So the augmentation
and the partner of a mixture depend only on (seed, epoch, sample).

data = Mixed(Folder(..., cut=cut("trivial", 224)), own, classes=1000)
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from trainer.config.exits import Fault
from trainer.config.own_settings import ImageFolder


class Photographs(Protocol):
    """What `Mixed` uses of a folder of images."""

    @property
    def samples(self) -> Sequence[tuple[Any, int]]: ...

    def __getitem__(self, index: int) -> tuple[Tensor, int]: ...

    def transform_batch(self, images: Tensor, keys: Tensor | None) -> Tensor: ...


def cut(augment: str, size: int) -> Callable[[Image.Image], Tensor]:
    """Return a function from an image to a tensor, shape (3, size, size), uint8."""
    policies = {"rand": [v2.RandAugment()], "trivial": [v2.TrivialAugmentWide()]}
    place = [v2.RGB(), v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    steps = [*place, *policies.get(augment, []), v2.PILToTensor()]
    whole: Callable[[Image.Image], Tensor] = v2.Compose(steps)
    return whole


class Mixed:
    """Images cut by the workers, each mixed with another image of the data set if `own` says so."""

    def __init__(
        self,
        images: Photographs,
        own: ImageFolder,
        *,
        classes: int,
    ) -> None:
        self.samples = images.samples
        self._images = images
        kinds = ((v2.MixUp, own.mixup), (v2.CutMix, own.cutmix))
        mixtures = [kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha]
        self._mix = v2.RandomChoice(mixtures) if mixtures else None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        """Return an image, shape (3, size, size), uint8, and its class, or the share of each class."""
        image, label = self._images[index]
        if self._mix is None:
            return image, label
        partner = int(torch.randint(len(self), ()))
        try:
            other, other_label = self._images[partner]
        except (Fault, MemoryError):
            raise
        except Exception as error:
            raise ValueError(f"mixed with {self.samples[partner][0]}: {error}") from error
        pair, labels = torch.stack([image, other]).float(), torch.tensor([label, other_label])
        mixed, shares = self._mix(pair, labels)  # each with the one before it
        return mixed[0].round().to(torch.uint8), shares[0]

    def transform_batch(self, images: Tensor, keys: Tensor | None) -> Tensor:
        return self._images.transform_batch(images, keys)
