"""Cutting a chain by cost: always a partition, and as cheap as the best of all cuts."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.plan.partition import partition

COSTS = st.lists(st.integers(0, 50), min_size=1, max_size=9)


def best_of_all(costs: list[int], parts: int) -> int:
    cuts = combinations(range(1, len(costs)), parts - 1)
    return min(max(sum(costs[a:b]) for a, b in pairwise([0, *cut, len(costs)])) for cut in cuts)


@given(COSTS, st.data())
def test_no_other_cut_has_a_cheaper_dearest_stage(costs: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(costs)))
    stages = partition(costs, parts)
    assert [n for stage in stages for n in stage] == list(range(len(costs)))
    assert len(stages) == parts
    assert all(stages)
    assert max(sum(costs[n] for n in stage) for stage in stages) == best_of_all(costs, parts)


@pytest.mark.parametrize(
    ("costs", "parts", "sizes"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([9, 1, 1, 1], 2, [1, 3]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], 3, [5, 2, 2]),
        ([0, 0, 0], 3, [1, 1, 1]),
    ],
)
def test_known_cuts(costs: list[float], parts: int, sizes: list[int]) -> None:
    assert [len(stage) for stage in partition(costs, parts)] == sizes


@pytest.mark.parametrize("parts", [0, 3])
def test_too_many_parts_are_an_error(parts: int) -> None:
    with pytest.raises(ValueError, match=f"2 costs cannot be cut into {parts} parts"):
        partition([1, 2], parts)
