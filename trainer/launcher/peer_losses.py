"""Counts consecutive peer losses without a new checkpoint; the count survives restarts.

Losing a peer (69) does not count as a failure, since the node that caused it ends with a code that
does. When no node does, the same loss could repeat forever, so after TRAINER_PEER_LOSSES it counts (70).
Node 0 keeps the count in the run folder. A new checkpoint resets it.

    raise peer_losses.count(settings, "lost node 1")
"""

import contextlib
import json
from pathlib import Path

from trainer.checkpoint.store import store_at
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings

_FILE = "lost-peers.json"


def count(settings: Settings, reason: str) -> Fault:
    """Count one more loss. Return 69, or 70 when there were more than allowed."""
    newest = ""
    with contextlib.suppress(OSError, Fault):
        place = settings.checkpoints or settings.run_folder / "checkpoints"
        newest = (store_at(place).names() or [""])[-1]
    file = settings.run_folder / _FILE
    checkpoint, losses = _read(file)
    losses = losses + 1 if checkpoint == newest else 1
    with contextlib.suppress(OSError):  # the ranks report a folder that cannot be written
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"checkpoint": newest, "losses": losses}), encoding="utf-8")
        new.replace(file)
    if losses <= settings.peer_losses:
        return Fault(Exit.PEER, reason)
    return Fault(
        Exit.CODE,
        f"{reason}; losses in a row without a new checkpoint: {losses}, of which "
        f"TRAINER_PEER_LOSSES={settings.peer_losses} are not counted as failures",
    )


def _read(file: Path) -> tuple[str, int]:
    """Return the newest checkpoint at the last loss, and the losses up to it."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return str(content["checkpoint"]), int(content["losses"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0
