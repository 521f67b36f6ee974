"""How often in a row a job lost a peer without coming any further: a count that survives restarts.

A lost peer (69) is no failure that a launcher counts: whoever caused it ends with a code of its own,
which is. Where nobody does, the same loss may come again and again; then it is counted after all, with
70. Node 0 keeps the count, in the run folder; a new checkpoint begins it anew.

    losses = count(settings)
"""

import contextlib
import json
from pathlib import Path

from trainer.checkpoint.store import store_at
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings

_FILE = "lost-peers.json"


def count(settings: Settings) -> int:
    """Count one more loss, and return how many there were since the newest checkpoint came."""
    newest = ""
    with contextlib.suppress(OSError, Fault):
        place = settings.checkpoints or settings.run_folder / "checkpoints"
        newest = (store_at(place).names() or [""])[-1]
    file = settings.run_folder / _FILE
    then, losses = _read(file)
    losses = losses + 1 if then == newest else 1
    with contextlib.suppress(OSError):  # a folder that cannot be written is told of by the ranks
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".new")
        beside.write_text(json.dumps({"checkpoint": newest, "losses": losses}), encoding="utf-8")
        beside.replace(file)
    return losses


def verdict(settings: Settings, reason: str) -> Fault:
    """Return what another loss amounts to: 69, or 70 once there were more than are allowed."""
    losses = count(settings)
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
        said = json.loads(file.read_text(encoding="utf-8"))
        return str(said["checkpoint"]), int(said["losses"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0
