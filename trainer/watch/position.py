"""Where a rank's main thread is, read from another thread: at its own work, or waiting for other ranks.

A rank that waits in a collective cannot report it, so the watchdog looks at its stack. It waits when
the innermost line of Python is in torch.distributed, or in the backward pass, whose end waits for the
gradients of other ranks, and when the kernel has the thread asleep. Anything else is its own work.

    position = main_position(scratch, device="cuda", is_alone=False)
"""

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from trainer.watch.stacks import main_stack

_TORCH = str(Path(torch.__file__).parent)
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_TRAINER = str(Path(__file__).parents[1])

# Files that only pass a call on: their caller says what the call is for.
_TRANSPARENT = tuple(
    f"{_TORCH}/{name}" for name in ("_ops.py", "utils/_", "_C/", "_tensor.py", "cuda/streams.py")
)
_COLLECTIVE = (
    *(f"{_TORCH}/{name}" for name in ("distributed/", "nn/parallel/distributed.py", "autograd/")),
    f"{_TRAINER}/watch/stop.py",
)
# Reads a number off the device, and so waits for all work in the device's queue.
_DEVICE = (f"{_TRAINER}/engine/step/nonfinite.py",)
# Work between two steps, of which the main rank may have more than the others, by its phase.
_BETWEEN = {
    f"{_TRAINER}/engine/evaluation": "evaluation",
    f"{_TRAINER}/engine/resume": "checkpoint",
    f"{_TRAINER}/checkpoint": "checkpoint",
    f"{_TRAINER}/preflight": "preflight",
}
_DATA = f"{_TRAINER}/data/"


@dataclass(frozen=True)
class Position:
    """The main thread at one moment: its innermost line outside of libraries, and what it does."""

    line: str
    waiting: bool
    phase: str

    @property
    def stepping(self) -> bool:
        """Whether it is in a step, not between two."""
        return self.phase not in _BETWEEN.values()


def main_position(scratch: IO[bytes], *, device: str, is_alone: bool) -> Position | None:
    """Return where the main thread is, None when it has ended.

    `scratch` is as in `main_stack`, `device` the rank's device type. `is_alone`: there are no others.
    """
    stack = main_stack(scratch)
    if not stack:
        return None
    innermost = next((f.file for f in stack if not f.file.startswith(_TRANSPARENT)), "")
    waits_for_device = device != "cpu" and innermost.startswith(_DEVICE)
    waits_for_ranks = not is_alone and innermost.startswith(_COLLECTIVE) and _main_is_asleep()
    frame = next((f for f in stack if not f.file.startswith(_LIBRARIES)), stack[0])
    between = [
        phase for f in stack for place, phase in _BETWEEN.items() if f.file.startswith(place)
    ]
    if between:
        phase = between[-1]  # the outermost: an evaluation waits for the copy of a checkpoint
    elif waits_for_ranks or waits_for_device:
        phase = "communication" if waits_for_ranks else "device"
    else:
        phase = "data" if any(f.file.startswith(_DATA) for f in stack) else "compute"
    return Position(
        line=f"{os.path.relpath(frame.file)}:{frame.line} in {frame.function}",
        waiting=waits_for_device or waits_for_ranks,
        phase=phase,
    )


def _main_is_asleep() -> bool:
    """Return whether the kernel has the main thread asleep; True where there is no /proc."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/stat").read_text(encoding="ascii")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] == "S"
