"""A stream by position: forwards, from a saved state, and its refusals."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.parity.stream_tasks import SAMPLES, Plain, WithState
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.loader import Loader
from trainer.data.order import Order, Samples, training_shares
from trainer.data.sets import Tensors
from trainer.data.stream import Stream
from trainer.data.task_contract import check_data
from trainer.plan.sizing import size

DATA = Tensors(torch.arange(SAMPLES), torch.arange(SAMPLES))


class Count(IterableDataset[Any]):
    """Yields the random numbers that it draws, with a given number of samples."""

    def __init__(self, count: int = 8, *, raises: int = -1) -> None:
        self.count, self.raises = count, raises

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for index in range(
            0 if info is None else info.id, self.count, info.num_workers if info else 1
        ):
            if index == self.raises:
                raise ValueError("oops")
            yield index, random.random() + float(torch.rand(()))  # noqa: S311


def test_positions_are_read_forward_and_again_from_the_start() -> None:
    stream = Stream(Plain(DATA, shuffled=False), seed=0)
    assert [int(stream[position][0]) for position in (0, 0, 5, 5, 9, 3, SAMPLES + 7)] == [
        *(0, 0, 5, 5, 9, 3, 7),
    ]


def test_the_order_is_the_streams_own_and_a_position_counts_all_epochs() -> None:
    order = Order(0, 10, 30, in_order=True)
    assert order.take(7, 6).indices.tolist() == [*range(7, 13)]
    assert order.take(28, 4, first=28).indices.tolist() == [28, 29, 28, 29]


@pytest.mark.parametrize("rank", range(3))
def test_padding_does_not_begin_a_stream_again(rank: int) -> None:
    sizes = size(Settings(global_batch=10, micro_batch=2, mode="ddp"), 3, label=str, uneven=True)
    order = Order(0, SAMPLES, 2 * SAMPLES - 7, in_order=True)
    start = SAMPLES - 15  # the second batch crosses the epochs
    before = Stream(WithState(DATA, shuffled=False), seed=0)
    _ = before[start - 1]
    dataset = WithState(DATA, shuffled=False)
    stream = Stream(dataset, seed=0)
    stream.resume(before.state())
    for samples in training_shares(order, sizes.batches, rank, start=start):
        for position in samples.indices.tolist():
            assert int(stream[position][0]) == position % SAMPLES
    assert dataset.begun == [start, 0]  # once in each epoch


def test_what_a_sample_draws_depends_on_its_place_alone() -> None:
    whole = [Stream(Count(), seed=1)[index] for index in range(8)]
    stream = Stream(Count(), seed=1)
    assert [stream[index] for index in (1, 6)] == [whole[1], whole[6]]
    assert Stream(Count(), seed=1)[8] != whole[0]
    assert Stream(Count(), seed=2)[0] != whole[0]


def test_a_state_continues_where_it_was_and_reads_nothing_before() -> None:
    stream = Stream(WithState(DATA, shuffled=True), seed=0)
    position = SAMPLES + 100
    before = stream[position]
    dataset = WithState(DATA, shuffled=True)
    resumed = Stream(dataset, seed=0)
    resumed.resume(stream.state())
    assert resumed[position + 5][0] == stream[position + 5][0]
    assert dataset.begun == [101]
    assert resumed[position][0] == before[0]  # earlier ones are read from the epoch's start
    assert resumed[2 * SAMPLES][0] == stream[2 * SAMPLES][0]
    assert dataset.begun == [101, 0, 0]


def test_a_state_that_holds_an_object_is_65() -> None:
    class Held(WithState):
        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at, "generator": random.Random(0)}  # noqa: S311

    stream = Stream(Held(DATA, shuffled=False), seed=0)
    _ = stream[0]
    with pytest.raises(Fault, match=r"its saved state cannot be read: .*; state_dict\(\) may hold"):
        stream.resume(stream.state())


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (
            Count(5),
            "the stream Count: epoch 0 ended after 5 samples, but its len() is 8; the dataset",
        ),
        (Count(raises=3), "the stream Count: raised ValueError: oops at sample 3 of epoch 0"),
    ],
)
def test_a_stream_that_ends_or_raises_is_65(dataset: Count, says: str) -> None:
    stream = Stream(dataset, seed=0)
    with pytest.raises(Fault) as caught:
        _ = stream[7]
    assert caught.value.code == Exit.DATA
    assert str(caught.value).startswith(says)


@pytest.mark.slow
def test_a_dataset_that_splits_itself_by_workers_is_split_once() -> None:
    loader = Loader(Stream(Count(), seed=0), device=torch.device("cpu"), workers=2)
    shares = (Samples(torch.tensor([at, at + 1]), torch.ones(2)) for at in (0, 2, 4, 6))
    assert [batch.inputs.tolist() for batch in loader(shares)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_without_a_length_it_is_refused_with_what_to_add() -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            yield 0

    with pytest.raises(
        Fault, match=r"Endless, an IterableDataset without a length; add to it `def "
    ):
        check_data(Endless(), "mine:Task", train=True)
