"""Tasks on MNIST and data sets in its format: four idx files, 28x28 grey images, ten classes."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.augment import Augmentation
from trainer.regular import open_regular
from trainer.tasks.digits import Net
from trainer.tasks.parts.classification import Classification
from trainer.tasks.parts.images import Images, data_folder

_MOST_BYTES = 100_000 * 28 * 28  # of one file; MNIST's own have 60,000 images


class MnistTask(Classification):
    """The small convolutional net on torchvision's data set `name`, read from torchvision's files."""

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
        folder = data_folder(self._settings, raw, data_set=self._name)
        images = _read_idx(folder / f"{part}-images-idx3-ubyte")
        labels = _read_idx(folder / f"{part}-labels-idx1-ubyte")
        if images.shape != (len(labels), 28, 28) or labels.max() > 9:
            raise Fault(
                Exit.DATA,
                f"{folder}: images of shape {tuple(images.shape)} and {len(labels)} labels up to "
                f"{int(labels.max())}; wanted: a label, 0 to 9, for each image of 28x28",
            )
        return Images(images[:, None], labels.long(), self._augmentation)


def _read_idx(path: Path) -> Tensor:
    """Return the uint8 array in an idx file, or in one with .gz added. Raises Fault(65).

    The format: two zero bytes, 8 for uint8, the number of dimensions, their sizes as big-endian uint32,
    the elements. A compressed file is read only as far as the sizes say, even if it holds more.
    """
    compressed = path.with_name(path.name + ".gz")
    shape: tuple[int, ...] = ()
    try:
        with (
            open_regular(path if path.exists() else compressed) as file,
            gzip.open(file) if not path.exists() else file as raw,
        ):
            head = raw.read(4)
            if len(head) == 4 and head[:3] == b"\0\0\x08" and 1 <= head[3] <= 3:
                sizes = raw.read(4 * head[3])
                shape = struct.unpack(f">{head[3]}I", sizes.ljust(4 * head[3], b"\0"))
            length = math.prod(shape) if shape else 0
            elements = raw.read(length + 1) if 0 < length <= _MOST_BYTES else b""
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise Fault(Exit.DATA, f"{path}: cannot be read: {reason}") from error
    if not elements or len(elements) != length:
        raise Fault(
            Exit.DATA,
            f"{path}: not an idx file of uint8: it begins {head.hex()}, its sizes are {shape}, and "
            f"{len(elements)} bytes follow; delete it and download it again",
        )
    return torch.frombuffer(bytearray(elements), dtype=torch.uint8).view(shape)
