"""The prefixes of a node's output lines: `trainer.launch` writes them, `python -m k8s` reads them.

rank_of("[rank 3] loading")   # 3
"""

import re

# How every event begins. Events of rank 0 get no prefix, so that they stay JSON.
EVENT = '{"event": '

_PREFIX = re.compile(r"\[rank (\d+)\] |launch: rank (\d+): ")

# The fields of an eval event that are not a score of the task.
EVAL_FIELDS = frozenset(
    {"event", "time", "step", "steps", "epoch", "loss", "lr", "metric", "samples", "seconds"}
)


def rank_prefix(rank: int) -> str:
    """Return the prefix of a rank's lines, in a job of several ranks."""
    return f"[rank {rank}] "


def rank_of(line: str) -> int | None:
    """Return the rank that wrote a line; None for the launcher, or in a job of one rank."""
    if line.startswith(EVENT):
        return 0
    found = _PREFIX.match(line)
    return int(found[1] or found[2]) if found else None


def bare(line: str) -> str:
    """Return a line without its `rank_prefix`."""
    rank = rank_of(line)
    return line if rank is None else line.removeprefix(rank_prefix(rank))
