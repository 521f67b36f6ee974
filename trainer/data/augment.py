"""Augmentation of whole batches on the device. Each sample's random numbers come from its key.

A key is a function of (seed, epoch, index), so a sample looks the same for any world size and number of
workers, and after a restart. torchvision's random transforms draw once for a whole batch. The transforms
here use integers and move whole pixels, so that every device computes the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.data.order import scramble

_STREAM = 0x1E3779B97F4A7C15  # an odd 64-bit number: the distance between two draws of a key


def draw(keys: Tensor, number: int, limit: int) -> Tensor:
    """Return the `number`-th random integer of each key, 0 <= value < limit, shape (n,)."""
    bits = scramble(keys + _STREAM * (number + 1)) & 0x7FFFFFFF
    return (bits * limit) >> 31


@dataclass(frozen=True)
class Augmentation:
    """Turns uint8 images, shape (n, channels, height, width), into normalised float32 ones.

    Each image is padded by `padding` on every side and cropped to `size` x `size`. With keys the crop is
    at a random position and, if `flip`, flipped left to right with probability 1/2; without keys it is
    in the middle. Then it is scaled to 0..1 and normalised with `mean` and `std`, per channel.
    """

    size: int
    mean: Sequence[float]
    std: Sequence[float]
    padding: int = 0
    flip: bool = False

    def __call__(self, images: Tensor, keys: Tensor | None) -> Tensor:
        if self.padding:
            images = F.pad(images, [self.padding] * 4)
        height, width = images.shape[-2] - self.size, images.shape[-1] - self.size
        if keys is None:
            top, left = height // 2, width // 2
            images = images[..., top : top + self.size, left : left + self.size]
        elif height or width or self.flip:
            images = self._window(images, keys, height, width)
        shape = (1, -1, 1, 1)
        mean = torch.tensor(self.mean, device=images.device).view(shape)
        std = torch.tensor(self.std, device=images.device).view(shape)
        # One copy, changed in place: to allocate another tensor costs as much as the operation on it.
        return images.to(torch.float32, copy=True).div_(255).sub_(mean).div_(std)

    def _window(self, images: Tensor, keys: Tensor, height: int, width: int) -> Tensor:
        across = torch.arange(self.size, device=images.device)
        rows = draw(keys, 0, height + 1)[:, None] + across
        columns = across.expand(len(images), -1)
        if self.flip:
            columns = torch.where(draw(keys, 2, 2)[:, None] > 0, columns.flip(1), columns)
        columns = draw(keys, 1, width + 1)[:, None] + columns
        samples = torch.arange(len(images), device=images.device)[:, None, None]
        # The channels' index is between the other indices, so the channels come last.
        chosen = images[samples, :, rows[:, :, None], columns[:, None, :]]
        return chosen.permute(0, 3, 1, 2)
