"""The Python stacks of this process: of the main thread while it runs, of all threads into a file.

    frames = main_stack(scratch)
    issued = write_dump(settings.run_folder / "logs", rank=0, device="cpu")

The watchdog reads the main thread's stack many times a second, for days, and must never crash the
rank. faulthandler.dump_traceback(all_threads=True) crashes when a C++ thread enters Python at that
moment, as gloo's threads and the backward pass do (python/cpython 116008, seen with 3.11); with 3.13.0
it also crashed at a frame of the main thread that had no code, under tp. A signal that makes the thread
write its own stack may interrupt it between the two instructions that set its frame. Safe is to look at
the main thread alone while this thread holds the interpreter's lock:

- Up to 3.12 by CPython's private `_Py_DumpTraceback`, because following `f_back` of a running thread
  has crashed 3.11. No other file uses a private name of CPython.
- From 3.13 on, which does not export it, by `PyThreadState_GetFrame` of the C API and `f_back`.
"""

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from trainer.config.settings import Settings
from trainer.distributed.torch_private import flight_recorder

log = logging.getLogger("trainer")

_SIGNAL = signal.SIGURG  # ignored by default: one that arrives late does nothing
_LIMIT = 1.0  # seconds for a thread to write its stack

# The line of a frame, as faulthandler writes it.
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
# How the stack of a thread that Python started ends; 3.13 writes no dots after its 100 frames.
_END = re.compile(rb'(/threading\.py", line \d+ in _bootstrap|\n  \.\.\.)\n\Z')


class Frame(NamedTuple):
    file: str
    line: str
    function: str


def main_stack(scratch: IO[bytes]) -> list[Frame]:
    """Return the frames of the main thread, innermost first.

    `scratch` is an open file of this process alone; to make one for each look took as long as the look.
    """
    scratch.seek(0)
    scratch.truncate()
    _write_main(scratch)
    scratch.seek(0)
    text = scratch.read().decode("ascii", errors="replace")
    return [Frame(*frame) for frame in _FRAME.findall(text)]


def write_dump(folder: Path, *, rank: int, device: str) -> dict[str, int]:
    """Write `rank-N.stack` and `rank-N.collectives.json`; return the collectives issued, by group.

    The second is torch's flight recorder, from torch 2.15 on. A folder that cannot be written costs
    the files only.
    """
    recorded = flight_recorder(device)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_stacks(folder / f"rank-{rank}.stack")
        if recorded != b"{}":
            (folder / f"rank-{rank}.collectives.json").write_bytes(recorded)
    except OSError as error:
        log.warning("%s: %s; the stacks are missing there", folder, error.strerror)
    groups = json.loads(recorded).get("pg_status", {})
    return {name: int(group["last_enqueued_collective"]) for name, group in groups.items()}


def write_stacks(path: Path) -> None:
    """Write the stacks of all Python threads to `path`, the main thread's first.

    The others write their own, in C, when a signal asks them: they do so while they wait, too.
    This waits for a thread's last frame before it asks the next: each frame is written in pieces.
    """
    main = threading.main_thread()
    path.unlink(missing_ok=True)  # of an earlier hang; a link would lead elsewhere
    with path.open("xb", buffering=0) as file:
        faulthandler.register(_SIGNAL, file, all_threads=False)
        try:
            for thread in sorted(threading.enumerate(), key=lambda thread: thread is not main):
                file.write(f"# {thread.name}\n".encode())
                if thread is main:
                    _write_main(file)
                    continue
                size, end = os.fstat(file.fileno()).st_size, time.monotonic() + _LIMIT
                if thread.ident is not None and thread.is_alive():
                    signal.pthread_kill(thread.ident, _SIGNAL)
                    while time.monotonic() < end and not _END.search(path.read_bytes(), size):
                        time.sleep(0.001)
        finally:
            faulthandler.unregister(_SIGNAL)


def _write_main(file: IO[bytes]) -> None:
    """Write the main thread's stack as faulthandler does; nothing if it has none."""
    if _main_state is None:
        return
    if _dump is not None:
        _dump(file.fileno(), _main_state)
        return
    lines, frame = [], None
    with contextlib.suppress(ValueError):  # NULL: it runs no Python
        frame = _get_frame(_main_state)
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}\n')
        frame = frame.f_back
    file.write("".join(lines).encode("ascii", errors="backslashreplace"))
    file.flush()


_dump = getattr(ctypes.pythonapi, "_Py_DumpTraceback", None)  # file descriptor, thread state
_get_frame = ctypes.pythonapi.PyThreadState_GetFrame
_get_frame.restype = ctypes.py_object
_main_state: ctypes.c_void_p | None = None


def _remember_main_state() -> None:
    """Keep the thread state of the main thread, which calls this."""
    global _main_state  # noqa: PLW0603  # a process has one
    get_state = ctypes.pythonapi.PyThreadState_Get
    get_state.restype = ctypes.c_void_p
    _main_state = ctypes.c_void_p(get_state())


if threading.current_thread() is threading.main_thread():
    _remember_main_state()
# The thread that forks is the child's main one.
os.register_at_fork(after_in_child=_remember_main_state)


@contextlib.contextmanager
def dump_stacks_after_timeout(settings: Settings) -> Iterator[None]:
    """Write this rank's stacks to stderr if the block takes longer than the collective timeout.

    It is for the time before there is a process group, when no other rank could be asked.
    """
    faulthandler.dump_traceback_later(settings.collective_timeout)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
