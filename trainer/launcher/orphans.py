"""A rank does not outlive its agent: orphans would hold their GPU and write to a run that has moved on.

Called first thing in `python -m trainer`.
"""

import ctypes
import os
import signal
import sys

from trainer.config.exits import Exit, Fault

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_the_agent() -> None:
    """Have the kernel kill this rank when its agent dies. Raises Fault(69) when it has died already."""
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    agent = os.environ.get("MUSTER_AGENT")
    die_with(int(agent) if agent else None)


def die_with(parent: int | None) -> None:
    """Have the kernel kill this process when its parent dies. Raises Fault(69) when it has already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        raise Fault(Exit.PEER, "the agent of this rank is gone")
