"""Counts consecutive peer losses without a new checkpoint; the count survives restarts.

Losing a peer (69) does not count as a failure, since the node that caused it ends with a code that
does. When no node does, the same loss could repeat forever, so after TRAINER_PEER_LOSSES it counts (70).
Node 0 keeps the count in the run folder. A new checkpoint removes it (trainer/checkpoint/saver.py).

    raise peer_losses.count(folder, allowed=10, reason="lost node 1")
"""

import contextlib
from pathlib import Path

from trainer.config.exits import Exit, Fault

FILE = "peer-losses"


def count(folder: Path, *, allowed: float, reason: str) -> Fault:
    """Count one more loss. Return 69, or 70 when there were more than allowed."""
    file, losses = folder / FILE, 1
    with contextlib.suppress(OSError, ValueError):
        losses += int(file.read_text(encoding="ascii"))
    with contextlib.suppress(OSError):  # the ranks report a folder that cannot be written
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(str(losses), encoding="ascii")
        new.replace(file)
    if losses <= allowed:
        return Fault(Exit.PEER, reason)
    return Fault(
        Exit.CODE,
        f"{reason}; lost peers in a row without a new checkpoint: {losses}, more than "
        f"TRAINER_PEER_LOSSES={allowed:.0f}: this counts as a failure",
    )


def forget(folder: Path) -> None:
    """Start over: there is a new checkpoint."""
    with contextlib.suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)
