"""What MNIST and the sets made in its image share: four idx files, 28x28 grey images, ten classes."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.augment import Augmentation
from trainer.tasks.digits import Net
from trainer.tasks.parts.images import Classification, Images, folder_of, idx


class IdxTask(Classification):
    """Trains the small convolutional net on torchvision's data set `name`, as that keeps it."""

    def __init__(self, settings: Settings, *, name: str, mean: float, std: float) -> None:
        self._settings = settings
        self._name = name
        self._augmentation = Augmentation(28, [mean], [std])

    def model(self) -> nn.Module:
        return Net()

    def data(self, *, train: bool) -> Images:
        """Return images, shape (n, 1, 28, 28), uint8, and labels 0 to 9."""
        raw = Path(self._name) / "raw"
        part = "train" if train else "t10k"
        download = partial(_download, self._name)
        folder = folder_of(self._settings, raw, download) / raw
        images = idx(folder / f"{part}-images-idx3-ubyte")
        labels = idx(folder / f"{part}-labels-idx1-ubyte")
        if images.shape != (len(labels), 28, 28) or (len(labels) and labels.max() > 9):
            raise Fault(
                Exit.DATA,
                f"{folder}: images of shape {tuple(images.shape)} and {len(labels)} labels up to "
                f"{int(labels.max())}; want one label, 0 to 9, for each image of 28x28",
            )
        return Images(images[:, None], labels.long(), self._augmentation)

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets as the model and the loss get them, to measure those with."""
        return torch.zeros(count, 1, 28, 28), torch.zeros(count, dtype=torch.long)


def _download(name: str, folder: str) -> None:
    from torchvision import datasets  # noqa: PLC0415  # as long to import as torch

    getattr(datasets, name)(folder, download=True)
