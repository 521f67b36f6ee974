"""Counts this node's accelerators, and shares its cores among its ranks.

print(count_devices(), share_cores(2))
"""

import os
import pkgutil
import subprocess
import sys
from math import ceil
from pathlib import Path

from trainer.config.exits import Exit, Fault

_COUNT_TIMEOUT = 600.0  # seconds; counting imports torch, perhaps from a slow disk


def count_devices() -> int:
    """Count the accelerators of this node; 0 if torch is not installed. Raises Fault(71).

    Another process counts, because a driver in use does not survive a fork, and the launcher does not
    import torch.
    """
    # The source is passed, because this package may be in a zip file.
    source = pkgutil.get_data("trainer.distributed", "devices.py") or b""
    command = [sys.executable, "-c", source.decode()]
    try:
        counted = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=_COUNT_TIMEOUT, check=True, text=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        ended = isinstance(error, subprocess.CalledProcessError)
        reason = "ended the process that called it" if ended else "does not answer"
        raise Fault(
            Exit.MACHINE,
            f"the accelerators of this node cannot be counted: the driver {reason}; set "
            "PET_NPROC_PER_NODE to the number of ranks",
        ) from None
    return int(counted.stdout)


def share_cores(ranks: int) -> str:
    """Set OMP_NUM_THREADS to each rank's share of the cores, unless set; return a line for the log.

    Otherwise each rank would start a thread for every core. Call it before torch is imported, because
    torch reads the variable during its import.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return ""
    cores = count_cores()
    threads = max(1, cores // max(1, ranks))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return f"OMP_NUM_THREADS={threads}: {cores} cores for {ranks} ranks"


def count_cores() -> int:
    """Return how many cores this process may use: by affinity, or by its cgroup's quota if lower."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return allowed if quota == "max" else min(allowed, ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return allowed
