"""Have the kernel kill a process with its parent: an orphaned rank would keep its GPU and train on.

A rank of our trainer calls `die_with_launcher` first. For any other command the launcher starts this
file's text, which then replaces itself by the command:

    python -c SOURCE PARENT_PID COMMAND ARGUMENT...
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PEER = 69  # as in the table of exit codes, which this file cannot import when started as text


def die_with_launcher() -> None:
    """Die with the process that started this rank: torchrun, or a program under our launcher."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(None)


def die_with_parent(parent: int | None) -> None:
    """Die with the parent (`parent`: its pid, if known); exit with 69 if it is already gone."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(_PEER)


def _become_command() -> None:
    die_with_parent(int(sys.argv[1]))
    command = sys.argv[2:]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, for its own code
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606  # the user's own command
    except OSError as error:
        print(f"launch: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(126)  # as a shell does


if __name__ == "__main__":
    _become_command()
