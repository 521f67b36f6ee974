"""Finds ranks that hang: for so long no output, and hardly any processor time.

    stall = Stall(600)
    stall.found([process.pid], output.bytes)    # whether they hang; to be asked often

Processor time is that of a rank and all it has started (Linux). A rank that waits for another in a
collective of NCCL computes: it looks busy, and torch's own time-out is the one that finds it.
"""

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

_BUSY = 0.01  # of a core: threads that only wait for something take less
_CHECKS = 20  # in the time allowed
_SHORTEST = 2.0  # seconds between two checks


class Stall:
    """Judges the ranks of a node together: one that waits for another one here does not hang."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        # Not shorter than a few ticks of idle threads; twice at least in the time allowed.
        self._interval = max(limit / _CHECKS, min(limit / 2, _SHORTEST))
        self._seen_output, self._seen_time = -1, 0.0
        self._checked = self._worked = time.monotonic()

    def found(self, leaders: Collection[int], output: int) -> bool:
        """Return whether these sessions, having written `output` bytes, hang; never at a limit of 0."""
        now = time.monotonic()
        passed = now - self._checked
        if self._limit and passed >= self._interval:
            self._checked = now
            used = _processor_time(leaders)
            if output != self._seen_output or abs(used - self._seen_time) > _BUSY * passed:
                self._worked = now
            self._seen_output, self._seen_time = output, used
        return 0 < self._limit <= now - self._worked


def _processor_time(leaders: Collection[int]) -> float:
    """Return the seconds of a core that all processes of these sessions have used."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # See proc(5); a name may hold spaces and brackets.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) in leaders:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
