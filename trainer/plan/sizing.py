"""The arithmetic of a run: mode, mesh, batches. Pure, shared by trainer and renderer, free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from trainer.config.environment import Label
from trainer.config.exits import Exit, Fault
from trainer.config.modes import AXES, DATA_AXES, MODES
from trainer.config.settings import Settings
from trainer.plan import schedules

# The modes that a mesh can stand for, the simplest first: one that can use every axis that is there.
_BY_MESH = ("ddp", "fsdp", "hsdp", "tp", "pp")


@dataclass(frozen=True)
class Batches:
    """Samples: `global_batch` = `micro` x `accumulation` x `replicas`.

    The product is larger where shares are uneven: what is missing is filled up at weight 0.
    """

    global_batch: int
    micro: int
    accumulation: int
    replicas: int


@dataclass(frozen=True)
class Sizing:
    """How a world of ranks trains: the mode with the reason it was chosen, mesh sizes, batches.

    `stages` the model is cut into; None where the devices say how many, or it is not cut.
    """

    world_size: int
    mode: str
    reason: str
    mesh: dict[str, int]
    batches: Batches
    stages: int | None = None


def size(settings: Settings, world_size: int, *, label: Label, uneven: bool = False) -> Sizing:
    """Settle mode, mesh and batches for `world_size` ranks. Raises Fault(64) when they do not fit.

    `uneven`: the ranks' shares of the batch may differ, for a world whose size nobody has chosen.
    """
    mode, reason = choose_mode(settings, world_size, label=label)
    mesh = settle_mesh(settings.mesh, mode, world_size, label=label)
    replicas = prod(mesh[axis] for axis in DATA_AXES)
    if MODES[mode].staged:
        batches, stages = _staged(settings, mode, mesh, label=label)
        return Sizing(world_size, mode, reason, mesh, batches, stages)
    if uneven:
        batches = _spread_batch(settings.global_batch, settings.micro_batch, replicas)
    else:
        batches = divide_batch(settings.global_batch, settings.micro_batch, replicas, label=label)
    return Sizing(world_size, mode, reason, mesh, batches)


def _staged(
    settings: Settings, mode: str, mesh: Mapping[str, int], *, label: Label
) -> tuple[Batches, int | None]:
    """Return batches and number of stages for a mode that cuts the model. Raises Fault(64)."""
    stages = settings.stages
    if "pp" in MODES[mode].axes:
        name, ranks = settings.pipeline_schedule, mesh["pp"]
        stages = schedules.settle_stages(name, ranks, stages, label=label)
    else:  # in one process any number of micro-batches works
        name, ranks = "gpipe", stages or 2
    replicas = prod(mesh[axis] for axis in DATA_AXES)
    whole = divide_batch(settings.global_batch, None, replicas, label=label).micro
    micro = settings.micro_batch or schedules.usual_micro_batch(name, ranks, whole)
    batches = divide_batch(settings.global_batch, micro, replicas, label=label)
    schedules.check(name, ranks, whole, micro, label=label)
    return batches, stages


def choose_mode(settings: Settings, world_size: int, *, label: Label) -> tuple[str, str]:
    """Return the mode to use and why: what was asked for, or for `auto` what fits mesh and world."""
    if settings.mode != "auto":
        return settings.mode, "as set"
    if settings.mesh:
        sizes = _parse_mesh(settings.mesh, label)
        used = [axis for axis in AXES if sizes.get(axis, 1) > 1]
        able = [mode for mode in _BY_MESH if {*used} <= {*MODES[mode].axes}]
        if used and able:
            return able[0], f"auto: the mesh spreads over {', '.join(used)}"
    if world_size == 1:
        return "single", "auto: one rank"
    return "ddp", f"auto: {world_size} ranks, and every one can hold the whole model"


def settle_mesh(text: str, mode: str, world_size: int, *, label: Label) -> dict[str, int]:
    """Return the size of every axis of the mesh.

    Without `text` the mode's first axis takes the whole world. Raises Fault(64) when the text does
    not parse, names an axis the mode does not use, or the product is not the world size.
    """
    usable = MODES[mode].axes
    if not text:
        sizes = _mesh_of_the_world(mode, world_size, label)
    else:
        sizes = _parse_mesh(text, label)
        for axis, extent in sizes.items():
            if extent > 1 and axis not in usable:
                raise Fault(
                    Exit.CONFIG,
                    f"{label('mesh')}={text!r}: mode {mode} does not use the axis {axis}; "
                    f"it uses {', '.join(usable) or 'none'}",
                )
    if prod(sizes.values()) != world_size:
        raise Fault(
            Exit.CONFIG,
            f"{label('mesh')}={text!r}: multiplies to {prod(sizes.values())}, but the world size is "
            f"{world_size}{_mesh_that_would_do(MODES[mode].whole, world_size)}",
        )
    return {axis: sizes.get(axis, 1) for axis in AXES}


def _mesh_of_the_world(mode: str, world_size: int, label: Label) -> dict[str, int]:
    usable, whole = MODES[mode].axes, MODES[mode].whole
    if whole:
        return {whole: world_size}
    if usable:
        outer = next(n for n in range(2, world_size + 2) if world_size % n == 0 or n > world_size)
        example = f"{usable[0]}={outer},{usable[1]}={max(1, world_size // outer)}"
        raise Fault(
            Exit.CONFIG,
            f"{label('mesh')} is not set: mode {mode} wants its mesh spelt out, e.g. {example}",
        )
    if world_size > 1:
        raise Fault(
            Exit.CONFIG,
            f"{label('mode')}={mode!r}: runs in one process, but there are {world_size} ranks; "
            "use ddp, or one rank",
        )
    return {}


def _parse_mesh(text: str, label: Label) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, number = (piece.strip() for piece in part.partition("="))
        if axis not in AXES or axis in sizes or not (number.isdecimal() and int(number) > 0):
            raise Fault(
                Exit.CONFIG,
                f"{label('mesh')}={text!r}: {part.strip()!r} is not AXIS=SIZE; write each of "
                f"{', '.join(AXES)} at most once, e.g. dp_replicate=2",
            )
        sizes[axis] = int(number)
    return sizes


def _mesh_that_would_do(whole: str | None, world_size: int) -> str:
    return f"; {whole}={world_size} would do" if whole else ""


def divide_batch(
    global_batch: int, micro_batch: int | None, replicas: int, *, label: Label
) -> Batches:
    """Split the global batch over `replicas` and into micro-batches. Raises Fault(64) on a remainder."""
    if global_batch % replicas:
        near = _nearest_multiples(global_batch, replicas)
        raise Fault(
            Exit.CONFIG,
            f"{label('global_batch')}={global_batch}: does not divide over {replicas} "
            f"data-parallel ranks; {near} would",
        )
    per_replica = global_batch // replicas
    micro = micro_batch or per_replica
    if per_replica % micro:
        fitting = max(n for n in range(1, micro) if per_replica % n == 0) if micro > 1 else 1
        raise Fault(
            Exit.CONFIG,
            f"{label('micro_batch')}={micro}: does not divide the {per_replica} samples that each of "
            f"{replicas} data-parallel ranks has per step; {fitting} would",
        )
    return Batches(global_batch, micro, per_replica // micro, replicas)


def _spread_batch(global_batch: int, micro_batch: int | None, replicas: int) -> Batches:
    """Split the global batch into equally shaped shares, of which the last ones may not be full."""
    share = ceil(global_batch / replicas)
    micro = min(micro_batch or share, share)
    return Batches(global_batch, micro, ceil(share / micro), replicas)


def _nearest_multiples(value: int, of: int) -> str:
    below = value // of * of
    return " or ".join(str(n) for n in (below, below + of) if n)


def data_rank(coordinates: Mapping[str, int], mesh: Mapping[str, int]) -> int:
    """Return which share of the data the rank at `coordinates` of the mesh reads."""
    rank = 0
    for axis in DATA_AXES:
        rank = rank * mesh[axis] + coordinates[axis]
    return rank
