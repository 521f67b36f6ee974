"""Where a rank's main thread is, seen from another thread: at its own work, or waiting for its peers.

A rank that waits in a collective says nothing of itself, so it is looked at from outside: the innermost
line of Python, and whether the kernel has the thread asleep. A line in torch.distributed, or the
backward pass, whose end waits for the gradients of others, asleep: waiting. Anything else: at work.
"""

import ctypes
import faulthandler
import os
import re
import sysconfig
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import torch

_TORCH = str(Path(torch.__file__).parent)
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_HERE = str(Path(__file__).parents[1])

# Lines of these pass a call on; who called them says what it is about.
_TRANSPARENT = tuple(f"{_TORCH}/{name}" for name in ("_ops.py", "utils/_", "_C/", "_tensor.py"))
_COLLECTIVE = (
    *(f"{_TORCH}/{name}" for name in ("distributed/", "nn/parallel/distributed.py", "autograd/")),
    f"{_HERE}/watch/stop.py",
)
# Lines that read a number off a device, and so wait for all that it has in its queue.
_DEVICE = (f"{_HERE}/engine/nonfinite.py",)
# What goes on between two steps; the main rank may have more to do there than the others.
_BETWEEN = tuple(
    f"{_HERE}/{name}" for name in ("engine/evaluation", "engine/resume", "checkpoint", "preflight")
)


# faulthandler's lines, the threads' and the frames'.
_THREAD = re.compile(r"hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """A moment of a thread: the line of the user's or this kit's code, and what it is doing there."""

    line: str
    waiting: bool
    stepping: bool


def look(thread: threading.Thread, *, device: str) -> Place | None:
    """Return where `thread` is; None when it has ended. `device` is the type of the rank's device."""
    stack = _stack(thread)
    if not stack:
        return None
    innermost = next((f.file for f in stack if not f.file.startswith(_TRANSPARENT)), "")
    waits_for_device = device != "cpu" and innermost.startswith(_DEVICE)
    own = (frame for frame in stack if not frame.file.startswith(_LIBRARIES))
    frame = next(own, stack[0])  # what its reader can do something about
    return Place(
        line=f"{os.path.relpath(frame.file)}:{frame.line} in {frame.function}",
        waiting=waits_for_device or (innermost.startswith(_COLLECTIVE) and _asleep(thread)),
        stepping=not any(frame.file.startswith(_BETWEEN) for frame in stack),
    )


class _Frame(NamedTuple):
    file: str
    line: str
    function: str


def _stack(thread: threading.Thread) -> list[_Frame]:
    """Return the frames of `thread`, innermost first; none when it has ended.

    By faulthandler's writer, which reads them as they are: to follow `f_back` makes frame objects of a
    thread that runs on meanwhile, and has ended a rank with a segmentation fault (Python 3.11).
    """
    with tempfile.TemporaryFile() as file:
        if thread is not threading.main_thread() or not write_main(file):
            faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode("ascii", errors="replace")
    for part in text.split("\n\n"):
        head, _, lines = part.partition("\n")
        found = _THREAD.search(head)
        if found is None or int(found[1], 16) == thread.ident:
            return [_Frame(*frame) for frame in _FRAME.findall(lines)]
    return []


def write_main(file: IO[bytes]) -> bool:
    """Write the main thread's stack as faulthandler does, and return whether that can be done here."""
    if _write is None or _main_state is None:
        return False
    _write(file.fileno(), _main_state)
    return True


# faulthandler offers this thread or all. All is fatal where a thread of C++ enters Python for the first
# time meanwhile, as the backward pass and gloo have some do: it is in the list before it has a stack
# (python/cpython 116008, seen with 3.11). One thread, waiting for the interpreter's lock that we hold,
# stands still. Not every Python lets its writer be found; there it is all threads after all.
_write = getattr(ctypes.pythonapi, "_Py_DumpTraceback", None)  # file descriptor, thread state
_main_state: ctypes.c_void_p | None = None


def _remember_main() -> None:
    """Take down the state of the main thread, which runs this."""
    global _main_state  # noqa: PLW0603  # a process has one
    ask = ctypes.pythonapi.PyThreadState_Get
    ask.restype = ctypes.c_void_p
    _main_state = ctypes.c_void_p(ask())


if threading.current_thread() is threading.main_thread():
    _remember_main()
os.register_at_fork(after_in_child=_remember_main)  # who forks is the main thread of the child


def _asleep(thread: threading.Thread) -> bool:
    """Return whether the kernel has the thread asleep; True where it does not tell."""
    try:
        text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text(encoding="ascii")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] == "S"
