"""Real ranks for the tests: processes with a gloo group that train as the settings say.

events = run_ranks(2, tmp_path, task="digits", mode="ddp", steps="20")
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.pool import carry_out, free_port, lend, start_server
from tests.pool_rank import Case

__all__ = ["free_port", "run_ranks", "start_server"]


def run_ranks(
    world_size: int,
    folder: Path,
    before: Callable[[], None] | None = None,
    /,
    *,
    code: Any = 0,  # int; as mypy sees it, `**settings` of a call could hold this and the next too
    timeout: Any = 120,  # float, in seconds
    **settings: str,
) -> list[dict[str, Any]]:
    """Train with `world_size` ranks, expect them to end with `code`, and return the events.

    The ranks are those of the pool (`tests/pool.py`). With `before`, a function of a module that each
    rank runs first, for example to plant a fault, they are fresh.
    """
    variables = {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
    quiet = {"TRAINER_LOG": "json", "TRAINER_OUT": str(folder), "TRAINER_LOG_STEPS": "1"}
    with lend(world_size, fresh=before is not None) as ranks:
        endings = carry_out(Case(quiet | variables, before), ranks, timeout=timeout)
    wrong = [
        f"rank {number} ended with {ending.code}, not {code}:\n{ending.stderr}"
        for number, ending in enumerate(endings)
        if ending.code != code
    ]
    assert not wrong, "\n".join(wrong)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def is_there(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def weights(folder: Path) -> dict[str, Any]:
    """Return the model's tensors in the newest checkpoint of a run."""
    from trainer.checkpoint.find import complete
    from trainer.checkpoint.parts import whole

    found = complete(str(max((folder / "checkpoints").glob("step-*"))))
    return {
        key.removeprefix("model."): whole(found, key)
        for key in found.manifest.tensors
        if key.startswith("model.")
    }
