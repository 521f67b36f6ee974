"""The data order: a pure function of (seed, epoch, position), whatever the number of ranks."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data import (
    Order,
    Tensors,
    evaluation_shares,
    load,
    mix,
    training_shares,
)
from trainer.sizing import Batches, divide_batch


def batches(micro: int, accumulation: int, replicas: int) -> Batches:
    return divide_batch(micro * accumulation * replicas, micro, replicas, label=str)


def seen(order: Order, sizes: Batches, *, start: int = 0) -> list[Counter[int]]:
    """Return, for every global step, which samples it sees how often, padding left out."""
    steps: dict[int, Counter[int]] = {}
    for rank in range(sizes.replicas):
        shares = training_shares(order, sizes, rank, start=start)
        for number, (indices, weights) in enumerate(shares):
            counter = steps.setdefault(number // sizes.accumulation, Counter())
            counter.update(indices[weights > 0].tolist())
    return list(steps.values())


shapes = st.builds(batches, st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))


@settings(deadline=None)
@given(shapes, st.integers(1, 50), st.integers(1, 4), st.integers(0, 9))
def test_every_epoch_holds_every_sample_once(
    sizes: Batches, length: int, epochs: int, seed: int
) -> None:
    order = Order(seed, length, epochs * length)
    total: Counter[int] = sum(seen(order, sizes), Counter())
    assert total == Counter(dict.fromkeys(range(length), epochs))
    stream, weights = order.take(0, epochs * length)
    assert weights.min() == 1
    for epoch in range(epochs):
        assert sorted(stream[epoch * length : (epoch + 1) * length].tolist()) == list(range(length))


@settings(deadline=None)
@given(shapes, st.integers(1, 50), st.integers(0, 9))
def test_a_step_sees_the_same_samples_on_any_number_of_ranks(
    sizes: Batches, length: int, seed: int
) -> None:
    order = Order(seed, length, 3 * length)
    alone = batches(sizes.global_batch, 1, 1)
    assert seen(order, sizes) == seen(order, alone)


@settings(deadline=None)
@given(shapes, st.integers(1, 50), st.integers(0, 5))
def test_starting_in_the_middle_goes_on_where_it_was(
    sizes: Batches, length: int, done: int
) -> None:
    order = Order(0, length, 4 * length)
    assert seen(order, sizes)[done:] == seen(order, sizes, start=done * sizes.global_batch)


@settings(deadline=None)
@given(shapes, st.integers(1, 50))
def test_evaluation_counts_every_sample_once_and_keeps_the_ranks_in_step(
    sizes: Batches, length: int
) -> None:
    counted: Counter[int] = Counter()
    shapes_seen = set()
    for rank in range(sizes.replicas):
        shares = list(evaluation_shares(length, sizes, rank))
        shapes_seen.add(tuple(len(indices) for indices, _ in shares))
        for indices, weights in shares:
            counted.update(indices[weights > 0].tolist())
    assert counted == Counter(range(length))
    assert len(shapes_seen) == 1  # a forward pass that communicates would hang otherwise


def test_epochs_and_seeds_differ() -> None:
    first, _ = Order(0, 100, 200).take(0, 200)
    other, _ = Order(1, 100, 200).take(0, 200)
    assert first[:100].tolist() != first[100:].tolist()
    assert first.tolist() != other.tolist()


def test_mixed_seeds_are_small_enough_for_torch_and_all_differ() -> None:
    values = [mix(a, b) for a in range(30) for b in range(30)]
    assert len(set(values)) == 900
    assert all(0 <= value < 2**63 for value in values)


class Squares:
    """A map-style data set."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index**2


@pytest.mark.parametrize("workers", [0, 2])
def test_data_read_by_workers_is_the_same_as_in_memory(workers: int) -> None:
    sizes = batches(2, 2, 1)
    order = Order(0, 10, 20)
    device = torch.device("cpu")
    numbers = torch.arange(10)
    in_memory = Tensors(numbers[:, None].float(), numbers**2)
    shares = list(training_shares(order, sizes, 0, start=0))
    direct = list(load(in_memory, iter(shares), device=device, workers=0))
    loaded = list(load(Squares(), iter(shares), device=device, workers=workers))
    assert len(direct) == len(loaded) == 10
    for one, other in zip(direct, loaded, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.weights, other.weights)


def test_learning_rate_warms_up_then_falls_to_zero() -> None:
    from trainer.optim import learning_rate
    from trainer.settings import Settings

    settings = Settings(lr=1.0, warmup_steps=5)
    rates = [learning_rate(step, 50, settings) for step in range(51)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(a >= b for a, b in pairwise(rates[4:]))
    assert rates[50] == pytest.approx(0)
    constant = Settings(lr=1.0, warmup_steps=0, schedule="constant")
    assert {learning_rate(step, 50, constant) for step in range(50)} == {1.0}
