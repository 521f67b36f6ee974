"""Equal tokens for every rank, for lengths with a long tail; compared with naive batching."""

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.order import Order, evaluation_shares, training_shares
from trainer.plan.balance import balance
from trainer.plan.batches import Batches, divide_batch


@settings(deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(0, 12))
def test_every_sample_goes_to_one_part_and_the_parts_are_equally_many(
    data: st.DataObject, parts: int, each: int
) -> None:
    count = parts * each
    lengths = data.draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))
    dealt = balance(lengths, parts)
    assert sorted(index for part in dealt for index in part) == list(range(count))
    assert [len(part) for part in dealt] == [each] * parts
    for part in dealt:
        assert [lengths[i] for i in part] == sorted((lengths[i] for i in part), reverse=True)


def test_what_cannot_be_dealt_out_equally_is_refused() -> None:
    with pytest.raises(ValueError, match="5 samples cannot be divided into 2"):
        balance([1] * 5, 2)


def log_normal(count: int, seed: int) -> torch.Tensor:
    """Return lengths with a mean of 165; the longest are thousands."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, generator=generator).exp() * 100).long().clamp(1, 2000)


def as_they_come(weights: list[float], parts: int) -> list[list[int]]:
    return torch.arange(len(weights)).view(parts, -1).tolist()


def worst_over_mean(order: Order, batches: Batches, steps: int) -> list[float]:
    """Return, for every step, the largest number of tokens of a rank divided by the ranks' mean."""
    taken = []
    for rank in range(batches.replicas):
        shares = training_shares(order, batches, rank, start=0)
        weights = [samples.weights for samples in islice(shares, steps * batches.accumulation)]
        taken.append(torch.stack(weights).view(steps, -1).sum(dim=1))
    tokens = torch.stack(taken)
    return (tokens.max(dim=0).values / tokens.mean(dim=0)).tolist()


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_tokens_per_rank_and_step_stay_within_five_percent(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = log_normal(20_000, seed=0)
    order = Order(0, len(lengths), 10 * len(lengths), lengths)
    batches = divide_batch(32 * replicas, 8, replicas, label=str)
    balanced = worst_over_mean(order, batches, steps=100)
    monkeypatch.setattr("trainer.data.order.balance", as_they_come)
    naive = worst_over_mean(order, batches, steps=100)
    print(
        f"{replicas} ranks: worst rank over mean, balanced {max(balanced):.4f}, "
        f"naive {sum(naive) / len(naive):.2f} on average and {max(naive):.2f} at worst"
    )
    assert max(balanced) <= 1.05
    assert max(naive) > 1.3  # planted: the test detects it


def test_micro_batches_hold_samples_of_similar_length() -> None:
    lengths = log_normal(1000, seed=1)
    batches = divide_batch(64, 4, 2, label=str)
    order = Order(0, len(lengths), len(lengths), lengths)

    def padded(rank: int) -> tuple[int, int]:
        rows = [lengths[s.indices] for s in training_shares(order, batches, rank, start=0)]
        return sum(len(row) * int(row.max()) for row in rows), sum(int(row.sum()) for row in rows)

    (one, real), (other, real_too) = padded(0), padded(1)
    naive = sum(len(row) * int(row.max()) for row in lengths[order.take(0, 1000).indices].split(4))
    overhead, naive_overhead = ((cells / (real + real_too) - 1) for cells in (one + other, naive))
    assert overhead < naive_overhead / 2


def test_evaluation_weighs_every_token_once() -> None:
    lengths = log_normal(101, seed=2)
    batches = divide_batch(16, 4, 4, label=str)
    weighed = torch.zeros(len(lengths))
    for rank in range(4):
        for samples in evaluation_shares(len(lengths), batches, rank, tokens=lengths):
            weighed.index_add_(0, samples.indices, samples.weights)
    assert weighed.tolist() == lengths.tolist()
