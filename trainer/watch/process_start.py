"""When this process began: before its imports, which take seconds.

began = process_start()
"""

import contextlib
import os
import time
from pathlib import Path


def process_start() -> float:
    """Return when this process began, in seconds since the epoch; now, where that is not known."""
    with contextlib.suppress(OSError):
        # After the name, which may hold spaces: the 20th field, in ticks since the machine's start.
        ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    return time.time()
