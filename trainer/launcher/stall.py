"""Finds ranks that hang: for a given time no output, and hardly any processor time.

    stall = Stall(600)
    stall.found([process.pid], output.bytes)    # whether they hang; call it often

Processor time is that of a rank and all processes it has started (Linux). A rank that waits in a
collective of NCCL uses processor time, so it is not found here, but by torch's own time-out.
"""

import time
from collections.abc import Collection

from trainer.launcher.sessions import processes

_BUSY = 0.01  # of a core; threads that only wait for something use less
_CHECKS = 20  # within the limit
_SHORTEST = 2.0  # seconds between two checks


class Stall:
    """Judges a node's ranks together, because a rank may wait for another one that works."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        # Not so short that a few ticks of idle threads count; at least two checks within the limit.
        self._interval = max(limit / _CHECKS, min(limit / 2, _SHORTEST))
        self._seen_output, self._seen_time = -1, 0.0
        self._checked = self._worked = time.monotonic()

    def found(self, leaders: Collection[int], output: int) -> bool:
        """Return whether these sessions hang; `output`: bytes they have written. A limit of 0: never."""
        now = time.monotonic()
        passed = now - self._checked
        if self._limit and passed >= self._interval:
            self._checked = now
            used = sum(one.seconds for one in processes(leaders))
            if output != self._seen_output or abs(used - self._seen_time) > _BUSY * passed:
                self._worked = now
            self._seen_output, self._seen_time = output, used
        return 0 < self._limit <= now - self._worked
