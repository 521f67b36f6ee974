"""Tasks that draw random numbers without a seed of their own: for their split, and in their layers."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, random_split

from trainer.config.settings import Settings
from trainer.data.sets import Tensors
from trainer.tasks import synthetic


def unseed() -> None:
    """Leave every generator in a state that no seed decides, as in a process that has just started."""
    random.seed()
    np.random.seed()
    torch.seed()


class SplitByTorch(synthetic.Task):
    """Splits one data set at random, in each call of data(). Every rank calls it: it is map-style."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._training: set[int] = set()

    def data(self, *, train: bool) -> Any:
        whole = super().data(train=True)
        order = self._order(len(whole.targets))
        chosen = order[:3000] if train else order[3000:]
        if train:
            self._training = {*chosen}
        assert train or self._training.isdisjoint(chosen)
        return TensorDataset(whole.inputs[chosen], whole.targets[chosen])

    def _order(self, length: int) -> list[int]:
        everything: Dataset[Any] = TensorDataset(torch.arange(length))
        first, second = random_split(everything, [3000, length - 3000])
        return [*first.indices, *second.indices]


class SplitByNumpy(SplitByTorch):
    def _order(self, length: int) -> list[int]:
        return [int(index) for index in np.random.permutation(length)]


class SplitByPython(SplitByTorch):
    def _order(self, length: int) -> list[int]:
        return random.sample(range(length), length)


class SplitWhenMade(SplitByTorch):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._once = random.sample(range(4096), 4096)

    def _order(self, _: int) -> list[int]:
        return self._once


class _Scaled(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values * (torch.rand(()) + float(np.random.rand()) + random.random())  # noqa: S311


class Noisy(synthetic.Task):
    """Its first layer draws from three libraries, also in evaluation."""

    def model(self) -> nn.Module:
        return nn.Sequential(_Scaled(), *super().model().children())


class _Drawn(Dataset[Any]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, _: int) -> Any:
        return torch.randn(64), torch.tensor(0)


class _Blurred(Dataset[Any]):
    def __init__(self, whole: Tensors) -> None:
        self._whole = whole

    def __len__(self) -> int:
        return len(self._whole)

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(64) + float(np.random.rand()) + random.random()  # noqa: S311
        return self._whole.inputs[index] + noise, self._whole.targets[index]


class BlurredWhenRead(synthetic.Task):
    """Adds noise to a sample when it is read, also for a test."""

    def data(self, *, train: bool) -> Any:
        return _Blurred(super().data(train=train))


class DrawnWhenRead(synthetic.Task):
    def data(self, *, train: bool) -> Any:
        return _Drawn(640 if train else 64)


class DrawnAlike(synthetic.Task):
    """Makes each set of random numbers, and forgets that both calls draw the same."""

    def data(self, *, train: bool) -> Any:
        count = 640 if train else 64
        return TensorDataset(torch.randn(count, 64), torch.zeros(count, dtype=torch.long))
