"""The container's entrypoint: starts this node's ranks, and ends with one exit code for all of them.

It is a supervisor that uses only the standard library. It meets the other nodes, gives each rank
torchrun's variables, and starts our trainer or any other program.

    python -m trainer.launch                            # our trainer: one rank per GPU, or one rank
    PET_NPROC_PER_NODE=2 python -m trainer.launch       # two ranks
    python -m trainer.launch --nproc-per-node 2 train.py --epochs 3
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # python -m looks in the current folder first, where a script may have a random.py or queue.py.
    sys.path.append(sys.path.pop(0))

import logging
import os
import signal
from contextlib import suppress
from types import FrameType

from trainer.config.exits import PROFILE_SIGNAL, STOP_SIGNALS, Exit, Fault
from trainer.config.log import log_to_stderr
from trainer.launcher.fork_server import ForkServer

_log = logging.getLogger("launch")


def main() -> int:
    """Launch this node's ranks and return the exit code of this process."""
    log_to_stderr()
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as after nohup
            signal.signal(number, _stop_before_start)
    signal.signal(PROFILE_SIGNAL, signal.SIG_IGN)  # our ranks inherit it
    try:
        has_command = len(sys.argv) > 1
        if os.environ.get("MUSTER_CODE"):
            from trainer.launcher.program.code_archive import unpack  # noqa: PLC0415  # rarely needed

            folder = unpack(os.environ)
            if has_command:
                os.chdir(folder)
        if has_command:
            from trainer.launcher.program.command_line import parse  # noqa: PLC0415  # often not needed

            name, command = parse(sys.argv[1:])
        else:
            name, command = "", []
        # First, because it imports torch, which takes longest.
        server = None if command else ForkServer()
        from trainer.launcher.node import run  # noqa: PLC0415  # imported at the same time

        return run(server, name=name, command=command)
    except Fault as fault:
        return _failed(fault.code, str(fault))
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "start new thread" not in str(error):
            raise
        return _failed(
            Exit.MACHINE,
            f"cannot start a process, a thread or a temporary file: {error}; look at ulimit -u -n, the "
            "container's limit of processes, and TMPDIR",
        )


def _failed(code: Exit, reason: str) -> int:
    """Log why the ranks cannot run, and return the exit code for the controller."""
    from trainer.launcher.node import reported, retry_offset  # noqa: PLC0415  # as above

    _log.error("%s (exit %d)", reason, code)
    with suppress(Fault):  # it may itself be the reason
        return reported(code, retry_offset())
    return code


def _stop_before_start(number: int, _: FrameType | None) -> None:
    for other in STOP_SIGNALS:  # a second signal must not interrupt the message
        signal.signal(other, lambda *_: None)
    raise Fault(Exit.STOPPED, f"{signal.Signals(number).name} before any rank was started")


def _open_closed_streams() -> None:
    """Open what the caller closed (`>&-`) on /dev/null: Python has no such stream, and ranks need it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest descriptor that is free: this one
            setattr(sys, name, os.fdopen(null, "w" if number else "r"))
            os.set_inheritable(null, True)


if __name__ == "__main__":
    _open_closed_streams()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit, because the interpreter would wait for a thread that may still be connecting.
    os._exit(code)
