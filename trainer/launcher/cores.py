"""Shares the cores of this node among its ranks: each would start a thread for every core otherwise.

print(share_cores(2))
"""

import os
import sys
from math import ceil
from pathlib import Path


def share_cores(ranks: int) -> str:
    """Set OMP_NUM_THREADS to each rank's share of the cores, unless set; return a line for the log.

    Must be called before torch is imported, which reads it then.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return ""
    cores = _count_cores()
    threads = max(1, cores // max(1, ranks))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return f"OMP_NUM_THREADS={threads}: {cores} cores for {ranks} ranks"


def _count_cores() -> int:
    """Return how many cores this process may use: its affinity, or its cgroup's quota if lower."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return allowed if quota == "max" else min(allowed, ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return allowed
