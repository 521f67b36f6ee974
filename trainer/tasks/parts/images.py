"""What the image tasks share: uint8 images, labels, and a loss on logits."""

import gzip
import math
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
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


class Classification:
    """Loss and metric of every task that tells classes apart."""

    metric = "accuracy"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(dim=1) == targets).float()


def folder_of(settings: Settings, present: Path, download: Callable[[str], object]) -> Path:
    """Return TRAINER_DATA once it holds `present`, downloading into it where the settings say so.

    `download` is called with the folder. Raises Fault(65) that says what to do.
    """
    name = f"task {settings.task}"
    if settings.data is None:
        raise Fault(
            Exit.DATA,
            f"{name}: set TRAINER_DATA to the folder that holds its data, and TRAINER_DOWNLOAD=1 "
            "to have it downloaded there",
        )
    wanted = settings.data / present
    if not wanted.exists() and settings.download:
        try:
            _fetch(settings.data, present, download)
        except (OSError, RuntimeError) as error:
            raise Fault(
                Exit.DATA, f"{name}: the download to {settings.data} failed: {error}"
            ) from error
    if not wanted.exists():
        raise Fault(
            Exit.DATA,
            f"{name}: {wanted} does not exist; set TRAINER_DOWNLOAD=1 to have it downloaded, or "
            "TRAINER_DATA to the folder that holds it",
        )
    return settings.data


def _fetch(folder: Path, present: Path, download: Callable[[str], object]) -> None:
    """Download beside and rename: a half must not look whole, and another node may do the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as beside:
        download(beside)
        target = folder / present
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            (Path(beside) / present).rename(target)
        except OSError:
            if not target.exists():  # else the other one was first
                raise


def idx(path: Path) -> Tensor:
    """Return the uint8 array in a file of MNIST's format, as it is or with .gz. Raises Fault(65).

    Two zero bytes, 8 for uint8, the number of dimensions, each as a big-endian uint32, the elements.
    """
    packed = path.with_name(path.name + ".gz")
    try:
        raw = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    except (OSError, EOFError) as error:
        raise Fault(Exit.DATA, f"{path}: cannot be read: {error}") from error
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4) if len(raw) >= 4 + 4 * raw[3] else ()
    start = 4 + 4 * len(shape)
    if raw[:3] != b"\0\0\x08" or not shape or len(raw) != start + math.prod(shape):
        raise Fault(
            Exit.DATA,
            f"{path}: {len(raw)} bytes beginning {raw[:4].hex()} are no idx file of uint8 {shape}; "
            "delete it and download it again",
        )
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=start).view(shape)
