"""Tasks on MNIST and data sets in its format: four idx files, 28x28 grey images, ten classes."""

import gzip
import math
import struct
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.augment import Augmentation
from trainer.tasks.digits import Net
from trainer.tasks.parts.classification import Classification
from trainer.tasks.parts.images import Images, data_folder


class MnistTask(Classification):
    """The small convolutional net on torchvision's data set `name`, in the files of torchvision."""

    def __init__(self, settings: Settings, *, name: str, mean: float, std: float) -> None:
        self._settings = settings
        self._name = name
        self._augmentation = Augmentation(28, [mean], [std])

    def model(self) -> nn.Module:
        return Net()

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        """Return `count` inputs and targets for a dry run, which needs no files."""
        return torch.zeros(count, 1, 28, 28), torch.zeros(count, dtype=torch.long)

    def data(self, *, train: bool) -> Images:
        """Return images, shape (n, 1, 28, 28), uint8, and labels 0 to 9."""
        raw = Path(self._name) / "raw"
        part = "train" if train else "t10k"
        download = partial(_download, self._name)
        folder = data_folder(self._settings, raw, download) / raw
        images = _read_idx(folder / f"{part}-images-idx3-ubyte")
        labels = _read_idx(folder / f"{part}-labels-idx1-ubyte")
        if images.shape != (len(labels), 28, 28) or (len(labels) and labels.max() > 9):
            raise Fault(
                Exit.DATA,
                f"{folder}: images of shape {tuple(images.shape)} and {len(labels)} labels up to "
                f"{int(labels.max())}; want one label, 0 to 9, for each image of 28x28",
            )
        return Images(images[:, None], labels.long(), self._augmentation)


def _download(name: str, folder: str) -> None:
    from torchvision import datasets  # noqa: PLC0415  # as long to import as torch

    getattr(datasets, name)(folder, download=True)


def _read_idx(path: Path) -> Tensor:
    """Return the uint8 array in an idx file, or in one with .gz added. Raises Fault(65).

    The format: two zero bytes, 8 for uint8, the number of dimensions, their sizes as big-endian uint32,
    the elements.
    """
    compressed = path.with_name(path.name + ".gz")
    try:
        raw = path.read_bytes() if path.exists() else gzip.decompress(compressed.read_bytes())
    except (OSError, EOFError) as error:
        raise Fault(Exit.DATA, f"{path}: cannot be read: {error}") from error
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4) if len(raw) >= 4 + 4 * raw[3] else ()
    start = 4 + 4 * len(shape)
    if raw[:3] != b"\0\0\x08" or not shape or len(raw) != start + math.prod(shape):
        raise Fault(
            Exit.DATA,
            f"{path}: not an idx file of uint8 {shape}: {len(raw)} bytes that begin {raw[:4].hex()}; "
            "delete it and download it again",
        )
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=start).view(shape)
