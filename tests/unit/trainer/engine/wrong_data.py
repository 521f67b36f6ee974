"""Tasks with wrong data; each has one mistake compared with `Right`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.unit.trainer.engine.wrong_tasks import Right
from trainer.data.sets import Tensors


class DataIsALoader(Right):
    def data(self, *, train: bool) -> Any:
        return DataLoader(TensorDataset(torch.rand(8, 2), torch.zeros(8).long()))


class DataIsAGenerator(Right):
    def data(self, *, train: bool) -> Any:
        yield torch.rand(2), 0


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield torch.rand(2), 0


class DataIsAStream(Right):
    def data(self, *, train: bool) -> Any:
        return Stream()


class DataIsNone(Right):
    def data(self, *, train: bool) -> Any:
        return None


class DataIsAPair(Right):
    def data(self, *, train: bool) -> Any:
        return {torch.rand(8, 2), torch.zeros(8)}


class DataTakesNothing(Right):
    def data(self) -> Any:  # type: ignore[override]
        return Tensors(torch.rand(8, 2), torch.zeros(8).long())


class DataIsEmpty(Right):
    def data(self, *, train: bool) -> Any:
        return Tensors(torch.rand(0, 2), torch.zeros(0).long())


class NoTestData(Right):
    def data(self, *, train: bool) -> Any:
        size = 8 * train
        return Tensors(torch.rand(size, 2), torch.zeros(size).long())


class DataIsNan(Right):
    def data(self, *, train: bool) -> Any:
        return Tensors(torch.full((8, 2), torch.nan), torch.zeros(8).long())


class DataFileIsMissing(Right):
    def data(self, *, train: bool) -> Any:
        return torch.load(Path("/no/such/file.pt"))


class DataRaises(Right):
    def data(self, *, train: bool) -> Any:
        return Tensors(torch.rand(8, 2), torch.zeros(8).lnog())  # type: ignore[attr-defined]


class TargetsAreFewer(Right):
    def data(self, *, train: bool) -> Any:
        return Tensors(torch.rand(8, 2), torch.zeros(7).long())


class Rows(Dataset[Any]):
    def __init__(self, row: Any) -> None:
        self.row = row

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.row


class Counted(Rows):
    def __init__(self, length: Any) -> None:
        super().__init__((torch.rand(2), 0))
        self.length = length

    def __len__(self) -> Any:
        return self.length


class ATestSampleHasNoTokens(Right):
    def data(self, *, train: bool) -> Any:
        data = Counted(8)
        data.tokens = torch.arange(8) + train  # type: ignore[attr-defined]
        return data


class Unreadable(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.rows[index]  # type: ignore[attr-defined]


class SamplesRaise(Right):
    def data(self, *, train: bool) -> Any:
        return Unreadable(0)


class LengthIsReal(Right):
    def data(self, *, train: bool) -> Any:
        return Counted(8.0)


class LengthIsNegative(Right):
    def data(self, *, train: bool) -> Any:
        return Counted(-1)


class SamplesAreWords(Right):
    def data(self, *, train: bool) -> Any:
        return Rows({"text": "a sentence", "label": "good"})


class SamplesAreForAnotherModel(Right):
    def data(self, *, train: bool) -> Any:
        return Rows({"input_ids": torch.zeros(2), "labels": torch.tensor(0)})


class Broken:
    def __len__(self) -> int:
        return 8

    def batch(self, indices: Tensor) -> Any:
        return torch.zeros(0, 2)[indices], indices


class BatchRaises(Right):
    def data(self, *, train: bool) -> Any:
        return Broken()


class TargetsAreReal(Right):
    def data(self, *, train: bool) -> Any:
        return Tensors(torch.rand(8, 2), torch.zeros(8))


class ClassTooMany(Right):
    def data(self, *, train: bool) -> Any:
        return Tensors(torch.rand(8, 2), torch.full((8,), 2))


class InputsAreWhole(Right):
    def data(self, *, train: bool) -> Any:
        return Tensors(torch.zeros(8, 2).long(), torch.zeros(8).long())
