"""Which rank keeps the others waiting, from how long each was at its own work.

Ranks that train together step at the same pace, so the pace tells nothing; but of each step a slow rank
works nearly all of the time, and the others wait. The times are durations by each rank's own clock:
it does not matter how far clocks are apart.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

_WINDOW = 4.0  # seconds that are looked at together, at least
_STEPS = 3  # and steps: within one, ranks come and go at different times
_TIMES = 3.0  # the median of the others, from which on a rank is slow
_SHARE = 0.3  # of all time that the others lose by it, at least
_QUIET = 600.0  # seconds before the same rank is named again


@dataclass(frozen=True)
class Work:
    """What a rank did since it started: steps, seconds in them, and of these at its own work."""

    steps: int = 0
    seconds: float = 0.0
    own: float = 0.0


@dataclass(frozen=True)
class Straggler:
    """A slow rank: seconds of own work per step, the others' median, and the share of time lost."""

    rank: int
    own: float
    usual: float
    lost: float


class Watch:
    """Names a rank that is slow in two windows in a row."""

    def __init__(self) -> None:
        self._since: dict[int, Work] = {}
        self._suspect: int | None = None
        self._named: dict[int, float] = {}

    def see(self, work: Mapping[int, Work], now: float) -> Straggler | None:
        """Take every rank's work so far, and return who is to be named at time `now`, in seconds."""
        if self._since.keys() != work.keys():
            self._since = dict(work)
            return None
        done = {rank: _since(self._since[rank], work[rank]) for rank in work}
        if any(one.steps < _STEPS or one.seconds < _WINDOW for one in done.values()):
            return None
        self._since = dict(work)
        found = slowest(done)
        rank = found.rank if found else None
        again, self._suspect = rank == self._suspect, rank
        if found is None or not again or now - self._named.get(found.rank, -_QUIET) < _QUIET:
            return None
        self._named[found.rank] = now
        return found


def slowest(done: Mapping[int, Work]) -> Straggler | None:
    """Return the rank that keeps the others waiting in a window, or None when none does."""
    if len(done) < 2:
        return None
    shares = {rank: one.own / one.seconds for rank, one in done.items()}
    rank = max(shares, key=lambda rank: shares[rank])
    usual = statistics.median(share for other, share in shares.items() if other != rank)
    if shares[rank] < _TIMES * usual or shares[rank] - usual < _SHARE:
        return None
    step = done[rank].seconds / done[rank].steps
    return Straggler(rank, shares[rank] * step, usual * step, shares[rank] - usual)


def _since(then: Work, now: Work) -> Work:
    return Work(now.steps - then.steps, now.seconds - then.seconds, now.own - then.own)
