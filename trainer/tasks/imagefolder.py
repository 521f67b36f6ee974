"""Photographs in folders, one subfolder per class, with any classification model of torchvision.

Reads TRAINER_DATA/train/CLASS/* and, to evaluate, TRAINER_DATA/val/CLASS/*: JPEG, PNG, GIF or WebP.

    TRAINER_TASK=imagefolder TRAINER_DATA=photos TRAINER_WORKERS=4 python -m trainer
"""

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import trainer.config.settings
from trainer.config.exits import Exit, Fault
from trainer.config.own_settings import ImageFolder
from trainer.config.settings import Settings
from trainer.data.augment import Augmentation
from trainer.data.listing import listed
from trainer.regular import open_regular
from trainer.tasks.parts import torchvision_models
from trainer.tasks.parts.classification import Classification

DEFAULTS = {"model": "resnet18"}
NEEDS_DATA = True
OWN_SETTINGS = True

_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".webp"}
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP")
_MOST_BYTES = 250_000_000  # of a file, and of a decoded image, which takes four bytes per pixel
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


def window(image: Image.Image, *, size: int) -> Tensor:
    """Return a random window of the middle square scaled to 8/7 of `size`, flipped in half of the cases.

    Its shape is (3, size, size), uint8. torch's generator is seeded with the sample's key.
    """
    square = _square(image, size * 8 // 7)
    top, left = torch.randint(square.shape[-1] - size + 1, (2,)).tolist()
    cut = square[:, top : top + size, left : left + size]
    return cut.flip(2) if torch.randint(2, ()) else cut


def middle(image: Image.Image, *, size: int, side: int) -> Tensor:
    """Scale the middle square to side x side; return the middle of it, shape (3, size, size), uint8."""
    start = (side - size) // 2
    return _square(image, side)[:, start : start + size, start : start + size]


def _square(image: Image.Image, side: int) -> Tensor:
    """Return the middle square of an image, scaled to (3, side, side), uint8.

    torch scales in a third of Pillow's time. But a large image is first reduced by Pillow to at least
    twice the side, by a whole factor: while it decodes a JPEG, then by means. That is faster still, and
    torch copies a smaller image.
    """
    image.draft(None, (2 * side, 2 * side))
    colours = image if image.mode == "RGB" else image.convert("RGB")
    factor = max(1, min(colours.size) // (2 * side))
    width = min(colours.size) // factor * factor
    left, top = (colours.width - width) // 2, (colours.height - width) // 2
    box = (left, top, left + width, top + width)
    pixels = np.array(colours.reduce(factor, box))
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return F.interpolate(batch, (side, side), mode="bilinear", antialias=True)[0]


class Folder:
    """A folder of images, decoded and cut by the loader's workers, normalised on the device.

    `cut` makes a tensor, shape (3, size, size), uint8, from an image; default: a random window.
    `keep`: the file in which the list of images is saved.
    """

    def __init__(
        self,
        root: Path,
        classes: list[str],
        size: int,
        *,
        cut: Callable[[Image.Image], Tensor] | None = None,
        keep: Path | None = None,
    ) -> None:
        self.samples = listed(root, classes, suffixes=_SUFFIXES, keep=keep)
        self._cut = cut or partial(window, size=size)
        self._normalise = Augmentation(size, _MEAN, _STD)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return the cut of an image and its class.

        The loader reports what Pillow raises for a damaged file, with the path from `samples`.
        """
        path, label = self.samples[index]
        # Without torchvision, which every worker would have to import. Only the formats of the suffixes:
        # Pillow passes an EPS file, whatever its name, to Ghostscript.
        with open_regular(path, at_most=_MOST_BYTES) as file:
            # Read first: from a file, Pillow would read as many bytes as a PNG's chunk claims to have.
            content = io.BytesIO(file.read())
        with Image.open(content, formats=_FORMATS) as image:
            copies = 1 if image.mode == "RGB" else 2
            if (size := image.width * image.height * 4 * copies) > _MOST_BYTES:
                raise ValueError(
                    f"{image.width} x {image.height} pixels take {size:,} bytes, over {_MOST_BYTES:,}"
                )
            # Of 16 bits Pillow keeps the high byte in colour, but convert() cuts grey ones off at 255.
            grey = image.mode == "I;16"
            return self._cut(image.point(lambda level: level / 256) if grey else image), label

    def transform_batch(self, images: Tensor, keys: Tensor | None) -> Tensor:
        return self._normalise(images, keys)


class Task(Classification):
    Settings = ImageFolder

    def __init__(
        self, settings: trainer.config.settings.Settings, own: ImageFolder | None = None
    ) -> None:
        self._settings, self._own = settings, own or ImageFolder()
        self.classes = _classes(settings, "train")

    def model(self) -> nn.Module:
        return torchvision_models.build(
            self._settings.model or "resnet18", classes=len(self.classes)
        )

    def data(self, *, train: bool) -> Any:
        """Return a Folder, or for training with the recipe's mixing or crops a `recipe.Mixed` of it."""
        part = "train" if train else "val"
        found = _classes(self._settings, part)
        if found != self.classes:
            raise Fault(
                Exit.DATA,
                f"TRAINER_DATA={self._settings.data}: train/ and val/ differ in the classes "
                f"{', '.join(sorted(set(found) ^ set(self.classes)))}",
            )
        root = Path(self._settings.data or "") / part
        size, own = self._settings.image_size, self._own
        keep = self._settings.run_folder / f"images-{part}.safetensors"
        if not train:
            side = max(own.resize, size) if own.resize else size * 8 // 7
            return Folder(
                root, self.classes, size, cut=partial(middle, size=size, side=side), keep=keep
            )
        if own.augment == "window" and not own.mixup and not own.cutmix:
            return _filled(Folder(root, self.classes, size, keep=keep))
        from trainer.tasks.parts import recipe  # noqa: PLC0415  # as long to import as torch

        cut = None if own.augment == "window" else recipe.cut(own.augment, size)
        images = _filled(Folder(root, self.classes, size, cut=cut, keep=keep))
        return recipe.Mixed(images, own, classes=len(self.classes))

    def parameter_groups(self, parameters: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
        """Return norms and biases in a group without weight decay, unless `decay_all` is set."""
        trained = [p for p in parameters.values() if p.requires_grad]
        if self._own.decay_all:
            return [{"params": trained}]
        flat = {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0}
        return [{"params": [p for p in trained if p.ndim >= 2]}, flat]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy; the target of a mixed sample is the share of each class."""
        wanted = targets.to(outputs.dtype) if targets.ndim == 2 else targets
        smoothing = self._own.label_smoothing
        return F.cross_entropy(outputs, wanted, reduction="none", label_smoothing=smoothing)

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return whether the class was predicted first, and whether it was among the first five.

        The class of a mixed sample is the one with the greater share.
        """
        labels = targets.argmax(dim=1) if targets.ndim == 2 else targets
        first = outputs.topk(min(5, outputs.shape[1])).indices == labels[:, None]
        return {"accuracy": first[:, 0].float(), "top5": first.any(dim=1).float()}


def _filled(images: Folder) -> Folder:
    """Return the training images. Raises Fault(65) if a class has none, which a run could not learn."""
    listing = images.samples
    counts = zip(listing.about["classes"], listing.firsts, listing.firsts[1:], strict=False)
    if empty := [name for name, first, end in counts if first == end]:
        raise Fault(
            Exit.DATA,
            f"{listing.about['root']}: no image in {', '.join(empty[:5])}; wanted: in the folder of "
            f"each class files with names that end in {', '.join(sorted(_SUFFIXES))}",
        )
    return images


def _classes(settings: Settings, part: str) -> list[str]:
    root = Path(settings.data or "") / part
    found = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if len(found) < 2:
        raise Fault(
            Exit.DATA,
            f"TRAINER_DATA={settings.data or '.'}: {part}/ has {len(found)} subfolders; task "
            "imagefolder needs train/CLASS/ and val/CLASS/ with the images of at least two classes",
        )
    return found
