"""Where a rank is, written down for people: the stacks of its threads, and torch's flight recorder.

issued = write_down(settings.run_folder / "logs", rank=0, device="cpu")
"""

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path

from trainer.watch import where

log = logging.getLogger("trainer")

_BOUND = 5.0  # seconds for a copy of this process to write its stacks
_ASK = signal.SIGUSR2


def write_down(folder: Path, *, rank: int, device: str) -> dict[str, int]:
    """Write `rank-N.stack` and `rank-N.collectives.json`; return the collectives issued, by group.

    A folder that cannot be written costs the files only.
    """
    recorded = _flight_recorder("nccl" if device == "cuda" else "gloo")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stacks(folder / f"rank-{rank}.stack")
        if recorded is not None:
            (folder / f"rank-{rank}.collectives.json").write_bytes(recorded)
    except OSError as error:
        log.warning("%s: %s; the stacks are missing there", folder, error.strerror)
    groups = json.loads(recorded).get("pg_status", {}) if recorded is not None else {}
    return {name: int(group["last_enqueued_collective"]) for name, group in groups.items()}


def stacks(path: Path) -> None:
    """Write the main thread's stack to `path`, then those of all threads, if that can be done.

    To read all of them can crash who does it (see `where`), so a copy of this process does. It is
    made without Python's knowledge, which would forget the threads, and is asked by a signal, which
    faulthandler answers in C: Python may not run in it, for its lock may be promised to a thread that
    was not copied.
    """
    with path.open("wb") as file:
        where.write_main(file)
        if sys.platform != "linux":
            return
        faulthandler.register(
            _ASK, file, all_threads=True, chain=True
        )  # then it ends, by the signal
        copy = ctypes.PyDLL(None).fork()  # PyDLL: the lock is held, so that no thread moves
        if copy == 0:
            _wait_for_the_signal()
        if copy > 0:
            _ask(copy)
        faulthandler.unregister(_ASK)


def _wait_for_the_signal() -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        time.sleep(2 * _BOUND)
    finally:
        os._exit(1)


def _ask(copy: int) -> None:
    """Have the copy write, and see that it ends, whatever becomes of it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(copy, _ASK)
    end = time.monotonic() + _BOUND
    while os.waitpid(copy, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(copy, signal.SIGKILL)
        time.sleep(0.01)


def _flight_recorder(backend: str) -> bytes | None:
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json  # noqa: PLC0415

        return bytes(_dump_fr_trace_json(backend=backend))
    except (ImportError, TypeError):  # as in torch before 2.15
        return None
