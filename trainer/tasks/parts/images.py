"""Data of the image tasks: uint8 images with labels, and the folder they are downloaded to."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.augment import Augmentation
from trainer.data.sets import Tensors


@dataclass(frozen=True)
class Images(Tensors):
    """uint8 images, shape (n, channels, height, width), and labels; normalised on the device."""

    augmentation: Augmentation

    def transform_batch(self, images: Tensor, keys: Tensor | None) -> Tensor:
        return self.augmentation(images, keys)


def data_folder(settings: Settings, present: Path, *, data_set: str) -> Path:
    """Return the folder `present` in TRAINER_DATA; download it if the settings say so.

    `data_set` is torchvision's name of the data set. Raises Fault(65) when `present` is missing.
    """
    name = f"task {settings.task}"
    if settings.data is None:
        raise Fault(
            Exit.DATA,
            f"{name}: set TRAINER_DATA to the folder of its data; TRAINER_DOWNLOAD=1 downloads the data "
            "into it",
        )
    wanted = settings.data / present
    if not wanted.exists() and settings.download:
        try:
            _fetch(settings.data, present, data_set)
        except (OSError, RuntimeError) as error:
            raise Fault(
                Exit.DATA, f"{name}: the download to {settings.data} failed: {error}"
            ) from error
    if not wanted.exists():
        raise Fault(
            Exit.DATA,
            f"{name}: {wanted} does not exist; set TRAINER_DOWNLOAD=1 to download it, or "
            "TRAINER_DATA to the folder that holds it",
        )
    return wanted


def _fetch(folder: Path, present: Path, data_set: str) -> None:
    """Download to a temporary folder, then rename: other nodes may download too, or it may fail."""
    from torchvision import datasets  # noqa: PLC0415  # as long to import as torch

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
        getattr(datasets, data_set)(temporary, download=True)
        target = folder / present
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            (Path(temporary) / present).rename(target)
        except OSError:
            if not target.exists():  # else another node was first
                raise
