"""Find the rank that keeps the others waiting, from the time that each rank spends at its own work.

Ranks that train together take the same time for a step, so the time of a step shows nothing. But a slow
rank works for nearly all of it, and the others wait. Every duration is measured by its rank's own clock,
so clocks need not agree.

    straggler = StragglerDetector().update({0: Work(...), 1: Work(...)}, time.monotonic())
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MIN_SECONDS = 4.0  # of a window
_MIN_STEPS = 3  # of a window: within one step, ranks come and go at different times
_MIN_RATIO = 3.0  # of a slow rank's own work to the median of the others
_MIN_SHARE = 0.3  # of all time, that the others lose by waiting for a slow rank
_SILENCE = 600.0  # seconds before the same rank is reported again


@dataclass(frozen=True)
class Work:
    """Of a rank: steps, the seconds they took, and the seconds of its own work in them."""

    steps: int = 0
    seconds: float = 0.0
    own: float = 0.0

    def __sub__(self, before: "Work") -> "Work":
        return Work(self.steps - before.steps, self.seconds - before.seconds, self.own - before.own)


@dataclass(frozen=True)
class Straggler:
    """A slow rank: seconds of own work per step, the others' median, and the share of time lost."""

    rank: int
    own: float
    median: float
    lost: float


def per_step(work: Work) -> dict[str, float | None]:
    """Return a rank's seconds per step, None without a step.

    `own_s`: its own work; `wait_s`: collectives, waiting for slower ranks included.
    """
    if work.steps <= 0:
        return {"own_s": None, "wait_s": None}
    return {"own_s": work.own / work.steps, "wait_s": (work.seconds - work.own) / work.steps}


def spread(work: Sequence[Work]) -> dict[str, float]:
    """Return how far the ranks' own work is apart, in seconds per step; {} if a rank has none."""
    if any(one.steps <= 0 for one in work):
        return {}
    own = [one.own / one.steps for one in work]
    return {"slowest_s": max(own), "middle_s": statistics.median(own)}


class Waits:
    """Adds up how long the median rank waits for slower ones, without the noise of the looks.

    In collectives every rank waits as long as the one that waits least; what is beyond that was for a
    slower rank. Of a window with few looks it may be noise: it counts from a fifth of the window, or if
    windows in a row, each with a tenth or more, have as much together, because a wait may fall into two.
    """

    def __init__(self) -> None:
        self._pending = 0.0  # seconds of the windows before, too few to count
        self._counts = False  # the window before counted

    def update(self, work: Sequence[Work]) -> float:
        """Take every rank's work in a window; return the seconds to count now."""
        waits = [one.seconds - one.own for one in work]
        waited = statistics.median_high(waits) - min(waits)
        least = 0.2 * max(statistics.median(one.seconds for one in work), _MIN_SECONDS)
        if waited < least / 2:
            self._pending, self._counts = 0.0, False
            return 0.0
        waited += self._pending
        self._counts = self._counts or waited >= least
        self._pending = 0.0 if self._counts else waited
        return waited if self._counts else 0.0


class StragglerDetector:
    """Reports a rank that is the slow one in two windows in a row."""

    def __init__(self) -> None:
        self._window_start: dict[int, Work] = {}
        self._suspect: int | None = None
        self._reported_at: dict[int, float] = {}

    def update(self, work: Mapping[int, Work], now: float) -> Straggler | None:
        """Take every rank's work so far; return the straggler to report at time `now`, in seconds."""
        if self._window_start.keys() != work.keys():
            self._window_start = dict(work)
            return None
        window = {rank: end - self._window_start[rank] for rank, end in work.items()}
        if any(one.steps < _MIN_STEPS or one.seconds < _MIN_SECONDS for one in window.values()):
            return None
        self._window_start = dict(work)
        found = slowest(window)
        suspect, self._suspect = self._suspect, found.rank if found else None
        if found is None or found.rank != suspect:
            return None
        if now - self._reported_at.get(found.rank, -_SILENCE) < _SILENCE:
            return None
        self._reported_at[found.rank] = now
        return found


def slowest(window: Mapping[int, Work]) -> Straggler | None:
    """Return the rank that keeps the others waiting in a window, or None when none does."""
    if len(window) < 2:
        return None
    shares = {rank: one.own / one.seconds for rank, one in window.items()}
    rank = max(shares, key=lambda rank: shares[rank])
    median = statistics.median(share for other, share in shares.items() if other != rank)
    if shares[rank] < _MIN_RATIO * median or shares[rank] - median < _MIN_SHARE:
        return None
    step = window[rank].seconds / window[rank].steps
    return Straggler(rank, shares[rank] * step, median * step, shares[rank] - median)
