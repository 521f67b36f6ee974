"""What a pipeline's ranks keep, against the orders of torch's own schedules."""

from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as of_torch

from trainer.plan import schedules
from trainer.plan.in_flight import Event, events

CASES = [
    (name, ranks, least, rounds)
    for name in ("interleaved-1f1b", "interleaved-zb", "zbv")
    for ranks in (2, 3, 4)
    for least in ((2, 3) if name != "zbv" else (2,))
    for rounds in (1, 2, 3)
]


def of(name: str, rank: int, ranks: int, *, least: int, count: int) -> list[Event]:
    """Return torch's events: it keeps what a pass forward made until the weights have gradients."""
    schedule: Any = object.__new__(getattr(of_torch, schedules.SCHEDULES[name].kind))
    schedule.pp_group_size, schedule.n_local_stages = ranks, least
    schedule.num_stages, schedule._n_microbatches = least * ranks, count  # noqa: SLF001
    schedule.microbatches_per_round = count // max(1, count // ranks)
    signs = {"F": 1, "W": -1, "B": -1}
    actions = schedule._calculate_single_rank_operations(rank)  # noqa: SLF001
    found = [(a.stage_index, signs.get(a.computation_type.value)) for a in actions if a is not None]
    return [(stage, sign) for stage, sign in found if sign]


def most(found: list[Event]) -> dict[int, int]:
    """Return the most that each stage keeps, and under -1 all together."""
    every = list(accumulate(sign for _, sign in found))
    peaks = {-1: max(every)}
    now: Counter[int] = Counter()
    for stage, sign in found:
        now[stage] += sign
        peaks[stage] = max(peaks.get(stage, 0), now[stage])
    assert not any(now.values())
    return peaks


@pytest.mark.parametrize(("name", "ranks", "least", "rounds"), CASES)
def test_what_is_kept_is_what_torch_keeps(name: str, ranks: int, least: int, rounds: int) -> None:
    count = ranks * rounds
    for rank in range(ranks):
        ours = list(events(name, rank, ranks, stages=least * ranks, count=count))
        assert most(ours) == most(of(name, rank, ranks, least=least, count=count))


def test_plain_schedules_keep_all_or_as_many_as_there_are_ranks_to_come() -> None:
    for rank in range(4):
        kept = {
            name: most(list(events(name, rank, 4, stages=4, count=6)))[rank]
            for name in ("gpipe", "1f1b")
        }
        assert kept == {"gpipe": 6, "1f1b": 4 - rank}
