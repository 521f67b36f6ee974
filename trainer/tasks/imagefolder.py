"""Photographs in folders, a subfolder a class, with any classification model of torchvision.

Reads TRAINER_DATA/train/CLASS/* and, to evaluate, TRAINER_DATA/val/CLASS/*: JPEG, PNG, GIF or WebP.

    TRAINER_TASK=imagefolder TRAINER_DATA=photos TRAINER_WORKERS=4 python -m trainer
"""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.augment import Augmentation
from trainer.data.regular import open_regular
from trainer.tasks.parts import torchvision_models
from trainer.tasks.parts.classification import Classification

DEFAULTS = {"model": "resnet18"}
NEEDS_DATA = True

_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".webp"}
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP")
_MOST_BYTES = 250_000_000  # of a file, and of a decoded image, which has four for each pixel
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


class Folder:
    """A folder of images, decoded by the loader's workers to squares a seventh larger than `size`.

    The device does the rest: in training a random window, half of them flipped left to right; in
    evaluation the window in the middle.
    """

    def __init__(self, root: Path, classes: list[str], size: int) -> None:
        self.samples = [
            (path, label)
            for label, name in enumerate(classes)
            for path in sorted((root / name).rglob("*"))
            if path.suffix.lower() in _SUFFIXES
        ]
        self._side = size * 8 // 7
        self._augmentation = Augmentation(size, _MEAN, _STD, flip=True)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return the middle square of an image, shape (3, side, side), uint8, and its class.

        The loader reports what Pillow raises for a damaged file, with the path from `samples`.
        """
        path, label = self.samples[index]
        # Not by torchvision: every worker would import it. Of the formats, only those of the suffixes:
        # Pillow hands an EPS, whatever its name, to Ghostscript.
        with open_regular(path, at_most=_MOST_BYTES) as file:
            # Read first: from a file Pillow would read as many bytes as a PNG's chunk claims to have.
            content = io.BytesIO(file.read())
        with Image.open(content, formats=_FORMATS) as image:
            copies = 1 if image.mode == "RGB" else 2
            if (size := image.width * image.height * 4 * copies) > _MOST_BYTES:
                raise ValueError(
                    f"{image.width} x {image.height} pixels take {size:,} bytes; {_MOST_BYTES:,} may be"
                )
            colours = image if image.mode == "RGB" else image.convert("RGB")
            side = (self._side, self._side)
            square = ImageOps.fit(colours, side, Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1), label

    def transform_batch(self, images: Tensor, keys: Tensor | None) -> Tensor:
        return self._augmentation(images, keys)


class Task(Classification):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.classes = _classes(settings, "train")

    def model(self) -> nn.Module:
        return torchvision_models.build(
            self._settings.model or "resnet18", classes=len(self.classes)
        )

    def data(self, *, train: bool) -> Folder:
        part = "train" if train else "val"
        found = _classes(self._settings, part)
        if found != self.classes:
            raise Fault(
                Exit.DATA,
                f"TRAINER_DATA={self._settings.data}: train/ and val/ differ in the classes "
                f"{', '.join(sorted(set(found) ^ set(self.classes)))}",
            )
        root = Path(self._settings.data or "") / part
        return Folder(root, self.classes, self._settings.image_size)


def _classes(settings: Settings, part: str) -> list[str]:
    root = Path(settings.data or "") / part
    found = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if len(found) < 2:
        raise Fault(
            Exit.DATA,
            f"TRAINER_DATA={settings.data}: {part}/ has {len(found)} subfolders; task imagefolder "
            "wants train/CLASS/ and val/CLASS/ with the images of at least two classes",
        )
    return found
