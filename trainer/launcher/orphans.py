"""Have the kernel kill a process with its parent: an orphaned rank would keep its GPU and train on.

`python -m trainer` calls `die_with_launcher` before anything else.
"""

import ctypes
import os
import signal
import sys

from trainer.config.exits import Exit, Fault

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_launcher() -> None:
    """Die with the launcher that started this rank. Raises Fault(69) when it is gone already."""
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    launcher = os.environ.get("MUSTER_AGENT")
    die_with_parent(int(launcher) if launcher else None)


def die_with_parent(parent: int | None) -> None:
    """Die with the parent, process `parent` where known. Raises Fault(69) when it is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        raise Fault(Exit.PEER, "the launcher of this rank is gone")
