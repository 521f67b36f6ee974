"""Which checkpoints stay: the last ones, every K-th for good, the best by the task's metric."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Keep:
    """How many newest and best ones stay; of each `every` steps the first one stays for good."""

    last: int
    every: int = 0
    best: int = 0


def superfluous(metrics: Mapping[int, float | None], keep: Keep) -> list[int]:
    """Return the steps of the checkpoints that may go, given each one's step and metric.

    The answer depends on nothing else, so it is the same after a restart.
    """
    steps = sorted(metrics)
    kept = {*steps[-keep.last :], *_best(metrics, keep.best)}
    if keep.every:
        kept |= set(_firsts(steps, keep.every))
    return [step for step in steps if step not in kept]


def _best(metrics: Mapping[int, float | None], count: int) -> list[int]:
    scored = [(value, step) for step, value in metrics.items() if value is not None]
    return [step for _, step in sorted(scored, reverse=True)[:count]]


def _firsts(steps: Iterable[int], every: int) -> list[int]:
    """Return the first step at or after each multiple of `every`."""
    firsts: dict[int, int] = {}
    for step in steps:
        if step >= every:
            firsts.setdefault(step // every, step)
    return list(firsts.values())
