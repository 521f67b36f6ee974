"""What process 1 of a container must do: hand signals on, and reap orphans, which have no other parent.

Without it zombies pile up until a node has no process numbers left, and a signal that arrives while
Python starts is lost, since the kernel drops what process 1 has not asked for.

    python -m trainer.launch    # stands in first thing, then launches in a child
"""

import contextlib
import os
import signal
from typing import NoReturn

# What a process does to itself, or what its terminal does to it.
_OWN = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}


def stand_in() -> None:
    """Return in a child if this is process 1, which stays behind as its init; else just return.

    To be called before there are threads.
    """
    if os.getpid() != 1:
        return
    handed_on = signal.valid_signals() - _OWN
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)
    child = os.fork()
    if child:
        _serve(child, handed_on)
    # A group of its own, in the foreground: Ctrl-C reaches it once, from the terminal.
    os.setpgid(0, 0)
    with contextlib.suppress(OSError):  # there is no terminal
        os.tcsetpgrp(0, os.getpgrp())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(child: int, handed_on: set[signal.Signals]) -> NoReturn:
    """Hand signals to `child` and reap whoever ends; end as the child does."""
    while True:
        number = signal.sigwait(handed_on)
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
            continue
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if ended == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
            if ended == 0:
                break
