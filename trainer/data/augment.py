"""Augmentation of whole batches on the device: each sample draws its own, by its key.

A key is a function of (seed, epoch, index), so neither world size nor workers nor restarts change what
a sample looks like. torchvision's random transforms draw once for a whole batch; these work on integers
and move whole pixels, so that every device gives the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.data.order import scramble

_STREAM = 0x1E3779B97F4A7C15  # apart from each other in the counter: an odd 64-bit number


def draw(keys: Tensor, number: int, limit: int) -> Tensor:
    """Return the `number`-th draw of every key, whole numbers 0 <= value < limit, shape (n,)."""
    bits = scramble(keys + _STREAM * (number + 1)) & 0x7FFFFFFF
    return (bits * limit) >> 31


@dataclass(frozen=True)
class Augmentation:
    """Turns uint8 images, shape (n, channels, height, width), into what a network reads.

    With keys: a window of `size` x `size` out of the image padded by `padding` on every side, at a
    place of the sample's own, turned left to right for every second sample if `flip`. Without keys:
    the window in the middle. Then scaled to 0..1 and normalised with `mean` and `std`, a value a
    channel.
    """

    size: int
    mean: Sequence[float]
    std: Sequence[float]
    padding: int = 0
    flip: bool = False

    def __call__(self, images: Tensor, keys: Tensor | None) -> Tensor:
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
        return (images.float() / 255 - mean) / std

    def _window(self, images: Tensor, keys: Tensor, height: int, width: int) -> Tensor:
        across = torch.arange(self.size, device=images.device)
        rows = draw(keys, 0, height + 1)[:, None] + across
        columns = across.expand(len(images), -1)
        if self.flip:
            columns = torch.where(draw(keys, 2, 2)[:, None] > 0, columns.flip(1), columns)
        columns = draw(keys, 1, width + 1)[:, None] + columns
        samples = torch.arange(len(images), device=images.device)[:, None, None]
        # indices stand apart from the channels, so those come last
        chosen = images[samples, :, rows[:, :, None], columns[:, None, :]]
        return chosen.permute(0, 3, 1, 2)
