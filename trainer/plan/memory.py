"""How much memory a rank will need: measured by a dry run in a separate process.

It works for any task that can be imported here. The calling process needs no torch:

    memory.dry_run(settings, 8, seconds=60).worst.peak

The dry run itself is `trainer/tools/dry_run.py`.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trainer.config.environment import variable
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.plan import own_process


@dataclass(frozen=True)
class Need:
    """What one rank needs, in bytes.

    `average`: the moving average of the weights. `activations`: what the forward pass keeps for the
    backward pass. `peak`: the total that is in memory at the peak of a step. `sent`: what the rank sends
    per step, by collective; the mean over the steps if not all send the same.
    """

    rank: int
    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    peak: int
    sent: dict[str, int]


@dataclass(frozen=True)
class DryRun:
    """The mode with its reason, and what its ranks need: one entry for each rank of a pipeline."""

    mode: str
    reason: str
    needs: list[Need]

    @property
    def worst(self) -> Need:
        """The rank that needs most."""
        return max(self.needs, key=lambda need: need.peak)


def dry_run(
    settings: Settings,
    world_size: int,
    *,
    seconds: float,
    device_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> DryRun:
    """Simulate a step of `world_size` ranks in a separate process, without allocating its memory.

    `device_bytes` is used if TRAINER_DEVICE_MEMORY is not set. `environment` is added to this process's
    environment; `folder` is where it runs. Raises Fault with one line when there is no result within
    `seconds`.
    """
    with tempfile.TemporaryDirectory() as out:
        changes: dict[str, Any] = {
            "dry_run": world_size,
            "out": Path(out),
            "log": "json",
            "metrics_port": None,
            "tensorboard": False,
            "tracker": "none",
        }
        if device_bytes and not settings.device_memory:
            changes["device_memory"] = device_bytes / 2**30
        done = own_process.run(
            "trainer",
            settings=settings.model_copy(update=changes),
            seconds=seconds,
            what="the dry run",
            environment=environment,
            folder=folder,
        )
    if done.returncode != 0:
        last = next(filter(str.strip, reversed(done.stderr.splitlines())), "no message")
        raise Fault(Exit.CODE, f"the dry run ended with {done.returncode}: {last.strip()}")
    needs = []
    for line in done.stdout.splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # the task may print too
            continue
        if isinstance(event, dict) and event.get("event") == "dry_run":
            mode, reason = event["mode"], event["reason"]
            needs.append(Need(**{field.name: event[field.name] for field in fields(Need)}))
    if not needs:
        raise Fault(Exit.CODE, f"the dry run printed no result; see {variable('dry_run')}")
    return DryRun(mode, reason, needs)
