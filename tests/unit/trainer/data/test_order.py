"""The data order: a pure function of (seed, epoch, position), whatever the number of ranks."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config.settings import Settings
from trainer.data.order import Order, evaluation_shares, mix, scramble, training_shares
from trainer.plan.batches import Batches, divide_batch
from trainer.plan.sizing import size


def batches(micro: int, accumulation: int, replicas: int) -> Batches:
    return divide_batch(micro * accumulation * replicas, micro, replicas, label=str)


def seen(order: Order, sizes: Batches, *, start: int = 0) -> list[Counter[int]]:
    """Return, for every global step, how often it uses each sample, without padding."""
    steps: dict[int, Counter[int]] = {}
    for rank in range(sizes.replicas):
        shares = training_shares(order, sizes, rank, start=start)
        for number, samples in enumerate(shares):
            counter = steps.setdefault(number // sizes.accumulation, Counter())
            counter.update(samples.indices[samples.weights > 0].tolist())
    return list(steps.values())


def uneven(global_batch: int, micro: int | None, replicas: int) -> Batches:
    set_so = Settings(global_batch=global_batch, micro_batch=micro, mode="ddp")
    return size(set_so, replicas, label=str, uneven=True).batches


shapes = st.builds(batches, st.integers(1, 5), st.integers(1, 3), st.integers(1, 4)) | st.builds(
    uneven, st.integers(1, 12), st.none() | st.integers(1, 5), st.integers(1, 5)
)


@settings(deadline=None)
@given(shapes, st.integers(1, 50), st.integers(1, 4), st.integers(0, 9))
def test_every_epoch_holds_every_sample_once(
    sizes: Batches, length: int, epochs: int, seed: int
) -> None:
    order = Order(seed, length, epochs * length)
    total: Counter[int] = sum(seen(order, sizes), Counter())
    assert total == Counter(dict.fromkeys(range(length), epochs))
    stream = order.take(0, epochs * length)
    assert stream.weights.min() == 1
    for epoch in range(epochs):
        assert sorted(stream.indices[epoch * length : (epoch + 1) * length].tolist()) == list(
            range(length)
        )


@settings(deadline=None)
@given(shapes, st.integers(1, 50), st.integers(0, 9))
def test_a_step_sees_the_same_samples_on_any_number_of_ranks(
    sizes: Batches, length: int, seed: int
) -> None:
    order = Order(seed, length, 3 * length)
    alone = batches(sizes.global_batch, 1, 1)
    assert seen(order, sizes) == seen(order, alone)
    tokens = torch.arange(1, length + 1)
    balanced = Order(seed, length, 3 * length, tokens)
    assert seen(balanced, sizes) == seen(order, alone)


@pytest.mark.parametrize("replicas", [2, 4])
def test_what_a_sample_draws_depends_on_seed_epoch_and_index_alone(replicas: int) -> None:
    def keys(order: Order, sizes: Batches) -> set[tuple[int, int]]:
        drawn: set[tuple[int, int]] = set()
        for rank in range(sizes.replicas):
            for samples in training_shares(order, sizes, rank, start=0):
                drawn |= set(zip(samples.indices.tolist(), samples.keys.tolist(), strict=True))
        return drawn

    order = Order(7, 24, 72)
    alone = keys(order, batches(24, 1, 1))
    assert len({key for _, key in alone}) == 72  # each epoch and sample has its own
    assert keys(order, batches(2, 2, replicas)) == alone
    resumed = Order(7, 24, 72).take(31, 5)  # in the middle of an epoch, as after a restart
    assert set(zip(resumed.indices.tolist(), resumed.keys.tolist(), strict=True)) < alone
    assert not keys(Order(8, 24, 72), batches(24, 1, 1)) & alone


def test_scrambled_numbers_are_those_of_splitmix64() -> None:
    def reference(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    values = [0, 1, 2**62, -1, -(2**63), 12345678901234567]
    assert [v % 2**64 for v in scramble(torch.tensor(values)).tolist()] == [
        reference(v % 2**64) for v in values
    ]


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
        shapes_seen.add(tuple(len(samples) for samples in shares))
        for samples in shares:
            counted.update(samples.indices[samples.weights > 0].tolist())
    assert counted == Counter(range(length))
    assert len(shapes_seen) == 1  # else a forward pass that communicates would hang


def test_epochs_and_seeds_differ() -> None:
    first = Order(0, 100, 200).take(0, 200).indices
    other = Order(1, 100, 200).take(0, 200).indices
    assert first[:100].tolist() != first[100:].tolist()
    assert first.tolist() != other.tolist()


def test_mixed_seeds_are_small_enough_for_torch_and_all_differ() -> None:
    values = [mix(a, b) for a in range(30) for b in range(30)]
    assert len(set(values)) == 900
    assert all(0 <= value < 2**63 for value in values)


def test_learning_rate_warms_up_then_falls_to_zero() -> None:
    from trainer.config.settings import Settings
    from trainer.distributed.optim import learning_rate

    settings = Settings(lr=1.0, warmup_steps=5)
    rates = [learning_rate(step, 50, settings) for step in range(51)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(a >= b for a, b in pairwise(rates[4:]))
    assert rates[50] == pytest.approx(0)
    constant = Settings(lr=1.0, warmup_steps=0, schedule="constant")
    assert {learning_rate(step, 50, constant) for step in range(50)} == {1.0}


def test_without_keys_the_samples_are_the_same_and_only_full_shares_are_whole() -> None:
    sizes = batches(4, 1, 1)
    keyed, plain = (
        list(training_shares(Order(3, 10, 20 - 2, keyed=keyed), sizes, 0, start=0))
        for keyed in (True, False)
    )
    for one, other in zip(keyed, plain, strict=True):
        assert other.keys is None
        assert one.indices.tolist() == other.indices.tolist()
        assert one.whole == other.whole == bool((one.weights == 1).all())
    assert [one.whole for one in plain] == [True] * 4 + [False]


@pytest.mark.parametrize("in_order", [False, True])
def test_padding_is_of_different_samples_and_the_same_on_any_number_of_ranks(
    *, in_order: bool
) -> None:
    """Copies of one sample have no variance: a BatchNorm's running variance would shrink."""
    order = Order(0, 148, 148, in_order=in_order)  # 20 samples for the last batch of 64
    alone = order.take(128, 64, first=128 if in_order else 0)
    assert alone.weights.tolist() == [1] * 20 + [0] * 44
    assert len({*alone.indices.tolist()}) == (20 if in_order else 64)
    for sizes in (batches(64, 1, 1), batches(4, 16, 1), batches(4, 8, 2), batches(16, 1, 4)):
        shares = [
            samples
            for rank in range(sizes.replicas)
            for samples in training_shares(order, sizes, rank, start=128)
        ]
        assert torch.cat([samples.indices for samples in shares]).equal(alone.indices)
        assert all(len({*samples.indices.tolist()}) > 3 for samples in shares)
