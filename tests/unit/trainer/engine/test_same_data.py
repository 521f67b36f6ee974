"""Data that a task has split by rank is refused; random samples are not taken for it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from tests.ranks import run_ranks
from trainer.config.settings import Settings
from trainer.tasks import synthetic


class _Whole(Dataset[Any]):
    def __init__(self, settings: Settings, *, train: bool) -> None:
        self._data: Any = synthetic.Task(settings).data(train=train)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        inputs, targets = self._data.batch(torch.tensor([index]))
        return inputs[0], targets[0]


class _Noisy(_Whole):
    """Its noise is not that of a seed, as of NumPy's own generators."""

    def __getitem__(self, index: int) -> Any:
        inputs, target = super().__getitem__(index)
        return inputs + float(np.random.default_rng().normal()), target


class _Stream(IterableDataset[Any]):
    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        return (self._data[index] for index in range(len(self._data)))


def _share(data: Any, count: int) -> Any:
    rank, ranks = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
    return Subset(data, range(rank, count, max(ranks, 1)))


class Split(synthetic.Task):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._settings = settings

    def data(self, *, train: bool) -> Any:
        data = self._whole(train=train)
        return _share(data, len(data))

    def _whole(self, *, train: bool) -> Any:
        return _Whole(self._settings, train=train)


class SplitToTest(Split):
    def data(self, *, train: bool) -> Any:
        return self._whole(train=True) if train else super().data(train=False)


class Uneven(Split):
    def data(self, *, train: bool) -> Any:
        data = self._whole(train=train)
        return _share(data, len(data) - 1)


class Streamed(Split):
    def data(self, *, train: bool) -> Any:
        return _Stream(super().data(train=train))


class _Seeded(_Whole):
    def __getitem__(self, index: int) -> Any:
        inputs, target = super().__getitem__(index)
        return inputs + torch.randn(()), target


class SeededSplit(Split):
    """Its samples are random, as those of most transforms."""

    def _whole(self, *, train: bool) -> Any:
        return _Seeded(self._settings, train=train)


class Seeded(SeededSplit):
    def data(self, *, train: bool) -> Any:
        return self._whole(train=train)


class Noisy(Split):
    def data(self, *, train: bool) -> Any:
        return _Noisy(self._settings, train=train)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            "Split",
            "data(train=True) has another first sample on rank 1 than on rank 0; wanted: the wh",
        ),
        (
            "SeededSplit",
            "data(train=True) has another first sample on rank 1 than on rank 0; wanted",
        ),
        (
            "SplitToTest",
            "data(train=False) has another first sample on rank 1 than on rank 0; wanted",
        ),
        (
            "Uneven",
            "data(train=True) has another length on rank 1 than on rank 0; wanted: the whole",
        ),
        (
            "Streamed",
            "data(train=True) has another first sample on rank 1 than on rank 0; wanted: th",
        ),
    ],
)
def test_data_that_is_split_by_rank_is_refused(task: str, message: str, tmp_path: Path) -> None:
    """Each rank would take a share of its share: some samples would never be used."""
    settings = {"task": f"{__name__}:{task}", "steps": "2"}
    events = run_ranks(2, tmp_path, code=64, **settings)
    assert f"task {settings['task']}: {message}" in events[-1]["message"]


@pytest.mark.parametrize("task", ["Seeded", "Noisy"])
def test_random_samples_are_not(task: str, tmp_path: Path) -> None:
    run_ranks(2, tmp_path, task=f"{__name__}:{task}", steps="2")
