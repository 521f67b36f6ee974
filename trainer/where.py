"""Where a rank's main thread is, seen from another thread: at its own work, or waiting for its peers.

A rank that waits in a collective says nothing of itself, so it is looked at from outside: the innermost
line of Python, and whether the kernel has the thread asleep. A line in torch.distributed, or the
backward pass, whose end waits for the gradients of others, asleep: waiting. Anything else: at work.
"""

import os
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

_TORCH = str(Path(torch.__file__).parent)
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_HERE = str(Path(__file__).parent)

# Lines of these pass a call on; who called them says what it is about.
_TRANSPARENT = tuple(f"{_TORCH}/{name}" for name in ("_ops.py", "utils/_", "_C/", "_tensor.py"))
_COLLECTIVE = (
    *(f"{_TORCH}/{name}" for name in ("distributed/", "nn/parallel/distributed.py", "autograd/")),
    f"{_HERE}/stop.py",
)
# Lines that read a number off a device, and so wait for all that it has in its queue.
_DEVICE = (f"{_HERE}/guard.py",)
# What goes on between two steps; the main rank may have more to do there than the others.
_BETWEEN = tuple(f"{_HERE}/{name}" for name in ("evaluation", "resume", "checkpoint", "preflight"))


@dataclass(frozen=True)
class Place:
    """A moment of a thread: the line of the user's or this kit's code, and what it is doing there."""

    line: str
    waiting: bool
    stepping: bool


def look(thread: threading.Thread, *, device: str) -> Place | None:
    """Return where `thread` is; None when it has ended. `device` is the type of the rank's device."""
    frames = sys._current_frames()  # noqa: SLF001  # documented, for this very purpose
    frame = frames.get(thread.ident or 0)
    if frame is None:
        return None
    stack: list[FrameType] = []
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    files = [frame.f_code.co_filename for frame in stack]
    innermost = next((file for file in files if not file.startswith(_TRANSPARENT)), "")
    waits_for_device = device != "cpu" and innermost.startswith(_DEVICE)
    return Place(
        line=_line(stack),
        waiting=waits_for_device or (innermost.startswith(_COLLECTIVE) and _asleep(thread)),
        stepping=not any(file.startswith(_BETWEEN) for file in files),
    )


def _line(stack: list[FrameType]) -> str:
    """Return the innermost line that belongs to no library: what its reader can do something about."""
    own = (frame for frame in stack if not frame.f_code.co_filename.startswith(_LIBRARIES))
    frame = next(own, stack[0])
    code = frame.f_code
    return f"{os.path.relpath(code.co_filename)}:{frame.f_lineno} in {code.co_name}"


def _asleep(thread: threading.Thread) -> bool:
    """Return whether the kernel has the thread asleep; True where it does not tell."""
    try:
        text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text(encoding="ascii")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] == "S"
