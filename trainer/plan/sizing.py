"""Compute mode, mesh and batches of a run. All ranks, the launcher and the renderer get the same result.

The order is mode, mesh (`mesh.py`), pipeline (`schedules.py`), batches (`batches.py`). Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from trainer.config.catalogue import catalogue, find_task, task_names
from trainer.config.environment import Label
from trainer.config.exits import Exit, Fault
from trainer.config.modes import AXES, DATA_AXES, MODES
from trainer.config.settings import Settings
from trainer.plan import schedules
from trainer.plan.batches import Batches, divide_batch, spread_batch
from trainer.plan.mesh import mesh_sizes, parse_mesh


@dataclass(frozen=True)
class Sizing:
    """How a number of ranks trains: the mode and the reason for it, mesh sizes, batches.

    `stages`: the number of stages of the model. None if it is not cut, or the number of devices decides.
    """

    world_size: int
    mode: str
    reason: str
    mesh: dict[str, int]
    batches: Batches
    stages: int | None = None


def size(settings: Settings, world_size: int, *, label: Label, uneven: bool = False) -> Sizing:
    """Return mode, mesh and batches for `world_size` ranks. Raises Fault(64) when they do not fit.

    `uneven`: the ranks' shares of the batch may differ, as in an elastic job, whose number of ranks
    changes.
    """
    mode, reason = _choose_mode(settings, world_size, label=label)
    mesh = mesh_sizes(settings.mesh, mode, world_size, label=label)
    for refusal in MODES[mode].refuses if world_size > 1 or not MODES[mode].axes else ():
        value = getattr(settings, refusal.setting)
        if refusal.applies(value):
            text = str(value).lower() if isinstance(value, bool) else repr(value)
            raise Fault(
                Exit.CONFIG,
                f"{label(refusal.setting)}={text}: not with mode {mode}: {refusal.reason}",
            )
    cut = [axis for axis in ("dp_shard", "tp") if mesh[axis] > 1]
    if settings.optimizer == "muon" and cut:
        raise Fault(
            Exit.CONFIG,
            f"{label('optimizer')}='muon': not with mode {mode} and {cut[0]}={mesh[cut[0]]}: it "
            "orthogonalises whole matrices, but each rank has only a part of them; use ddp-zero1",
        )
    replicas = prod(mesh[axis] for axis in DATA_AXES)
    total, micro, stages = settings.global_batch, settings.micro_batch, None
    if MODES[mode].staged:
        schedule, pp, stages = settings.pipeline_schedule, mesh["pp"], settings.stages
        if "pp" in MODES[mode].axes:
            stages = schedules.count_stages(schedule, pp, stages, label=label)
        else:  # in one process any number of micro-batches works
            schedule, pp = "gpipe", stages or 2
        per_replica = divide_batch(total, None, replicas, label=label).micro
        micro = micro or schedules.default_micro_batch(schedule, pp, per_replica)
        batches = divide_batch(total, micro, replicas, label=label)
        schedules.check_micro_batch(schedule, pp, per_replica, micro, label=label)
    elif uneven:
        batches = spread_batch(total, micro, replicas)
    else:
        batches = divide_batch(total, micro, replicas, label=label)
    _check_task(settings, mode, mesh, stages or 2)
    if settings.static_graph and batches.accumulation > 1 and mode in ("ddp", "ddp-zero1"):
        # DDP's reducer fails in the first backward pass under no_sync: an internal assert (torch 2.15).
        raise Fault(
            Exit.CONFIG,
            f"{label('static_graph')}=true: not supported with gradient accumulation; remove "
            f"{label('micro_batch')}={micro}",
        )
    return Sizing(world_size, mode, reason, mesh, batches, stages)


def _check_task(settings: Settings, mode: str, mesh: dict[str, int], stages: int) -> None:
    """Raise Fault(64) when a built-in task's model cannot be split over tp or cut into `stages`."""
    task, model = settings.task, settings.model
    if task not in task_names():
        return
    entry = find_task(task)
    named = f"{task}, {model}" if model else task
    if prod(mesh.values()) > 1 and (mode == "tp" or mesh["tp"] > 1):
        divisible = entry.divisible(model)
        if not divisible:
            able = ", ".join(name for name, one in catalogue().items() if one.splits)
            raise Fault(
                Exit.CONFIG,
                f"task {named}: its model cannot be split over the axis tp; tasks that can: {able}",
            )
        check_divisible(divisible, mesh["tp"], task=named)
    if MODES[mode].staged and (mesh["pp"] > 1 or not MODES[mode].axes):
        pieces = entry.pieces(model)
        if pieces == 0:
            raise Fault(
                Exit.CONFIG,
                f"task {named}: its model cannot be cut into stages, as mode {mode} does",
            )
        if pieces is not None and pieces < stages:
            raise Fault(
                Exit.CONFIG,
                f"task {named}: the {pieces} pieces of its model cannot make {stages} stages; use at "
                f"most {pieces}",
            )


def check_divisible(divisible: Mapping[str, int], tp: int, *, task: str) -> None:
    """Raise Fault(64) when the size of the axis tp does not divide what it splits in a model."""
    for name, number in divisible.items():
        if number % tp:
            fitting = max(n for n in range(1, tp) if number % n == 0)
            raise Fault(
                Exit.CONFIG,
                f"task {task}: the {number} {name} of its model do not divide over tp={tp}; "
                f"use tp={fitting}",
            )


def _choose_mode(settings: Settings, world_size: int, *, label: Label) -> tuple[str, str]:
    """Return the mode and the reason: the mode that is set, or for `auto` by mesh and world size."""
    if settings.mode != "auto":
        return settings.mode, "as set"
    if settings.mesh:
        sizes = parse_mesh(settings.mesh, label)
        used = [axis for axis in AXES if sizes.get(axis, 1) > 1]
        able = [
            name for name, mode in MODES.items() if mode.auto_by_mesh and {*used} <= {*mode.axes}
        ]
        if used and able:
            fewest = min(able, key=lambda name: len(MODES[name].axes))
            return fewest, f"auto: the mesh spreads over {', '.join(used)}"
    if world_size == 1:
        return "single", "auto: one rank"
    return by_memory()[0], f"auto: {world_size} ranks; the memory of a device was not considered"


def by_memory() -> list[str]:
    """Return the modes that `auto` may choose by memory; the mode that sends least comes first."""
    return [name for name, mode in MODES.items() if mode.auto_by_memory]
