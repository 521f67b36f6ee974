"""Whose a line of a node's output is: what `trainer.launch` writes before it, and how it is read back.

rank_of("[rank 3] loading")   # 3
"""

import re

# How every event begins that metrics.py writes; they are the main rank's, and stay JSON.
EVENT = '{"event": '

_SAID = re.compile(r"\[rank (\d+)\] |launch: rank (\d+): ")


def of_rank(rank: int) -> str:
    """Return what a line of a rank begins with, where a job has several."""
    return f"[rank {rank}] "


def rank_of(line: str) -> int | None:
    """Return whose a line is, None for the launcher's own, or where the job has one rank only."""
    if line.startswith(EVENT):
        return 0
    found = _SAID.match(line)
    return int(found[1] or found[2]) if found else None


def bare(line: str) -> str:
    """Return a line without what `of_rank` has put before it."""
    rank = rank_of(line)
    return line if rank is None else line.removeprefix(of_rank(rank))
