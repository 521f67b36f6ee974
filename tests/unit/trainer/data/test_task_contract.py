"""The counts in a data set's `tokens` are checked before they weigh anything."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from trainer.config.exits import Exit, Fault
from trainer.data.task_contract import check_data


class Three(Dataset[int]):
    def __init__(self, tokens: Any) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    tokens = torch.ones(3)

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


WANTED = "; wanted: a tensor of 3 counts, one for each sample"
WRONG = [
    (Three([1, 2, 3]), "is a list" + WANTED),
    (Three(np.ones(3)), "is a ndarray" + WANTED),
    (Three(torch.ones(2)), "has shape (2,) and torch.float32" + WANTED),
    (Three(torch.ones(3, 1)), "has shape (3, 1) and torch.float32" + WANTED),
    (Three(torch.ones(3).bool()), "has shape (3,) and torch.bool" + WANTED),
    (Three(torch.tensor([1, 0, 2])), "is 0 for sample 1; wanted: above 0"),
    (Three(torch.tensor([1, 2, -3])), "is -3 for sample 2; wanted: above 0"),
    (Three(torch.tensor([1, torch.nan, 2])), "is nan for sample 1; wanted: above 0"),
    (Three(torch.tensor([torch.inf, 1, 2])), "is inf for sample 0; wanted: above 0"),
    (Stream(), "would not be used: a stream's samples have no weights"),
]


@pytest.mark.parametrize(("data", "says"), WRONG)
def test_wrong_tokens_are_refused(data: Any, says: str) -> None:
    with pytest.raises(Fault) as caught:
        check_data(data, "own:Own", train=True)
    assert caught.value.code == Exit.CONFIG
    start = f"task own:Own: data(train=True) returned {type(data).__name__}, whose tokens "
    assert str(caught.value).startswith(start + says)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint16, torch.float32])
def test_counts_of_any_number_type_are_right(kind: torch.dtype) -> None:
    check_data(Three(torch.tensor([1, 2, 3], dtype=kind)), "own:Own", train=True)
    check_data(Three(None), "own:Own", train=True)
