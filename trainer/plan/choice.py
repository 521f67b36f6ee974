"""What `auto` chooses, by what a rank would have to hold: free of torch, so that the plan says the same.

TRAINER_MODE=auto TRAINER_DEVICE_MEMORY=80 python -m trainer
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainer.config.environment import Label
from trainer.config.exits import Fault
from trainer.config.settings import Settings
from trainer.plan.sizing import Sizing, size

if TYPE_CHECKING:
    from trainer.plan.costs import Piece

# From the one that sends least to the one that holds least.
_CANDIDATES = ("ddp", "ddp-zero1", "fsdp")

# Of a device's memory: the rest is for what is not tensors (the context, kernels, fragments).
_USABLE = 0.9


def settle(
    settings: Settings,
    world_size: int,
    *,
    label: Label,
    uneven: bool = False,
    device_bytes: int | None = None,
) -> Sizing:
    """Settle mode, mesh and batches for `world_size` ranks; see `sizing.size`.

    Where `auto` is free to choose, the task's costs are known, and so is the memory of a device
    (TRAINER_DEVICE_MEMORY, else `device_bytes`), it is the simplest mode that fits.
    """
    sizing = size(settings, world_size, label=label, uneven=uneven)
    memory = settings.device_memory * 2**30 if settings.device_memory else device_bytes
    free = settings.mode == "auto" and sizing.mode == "ddp" and not settings.mesh
    if not free or memory is None:
        return sizing
    # Not before they are needed: the renderer's start-up is a budget.
    from trainer.plan.costs import pieces_of  # noqa: PLC0415
    from trainer.plan.memory import estimate  # noqa: PLC0415

    pieces = pieces_of(settings.task)
    if pieces is None:
        return sizing
    tried = []
    for mode in _CANDIDATES:
        chosen = settings.model_copy(update={"mode": mode})
        sizing = size(chosen, world_size, label=label, uneven=uneven)
        need = estimate(pieces, sizing, settings).total
        tried.append(f"{mode} needs {need / 2**20:.1f} MiB")
        if need <= _USABLE * memory:
            break
    else:
        would = _what_would_fit(pieces, settings, world_size, _USABLE * memory, label=label)
        tried.append(f"not even that fits: {would}")
    of = f"{_USABLE:.0%} of {memory / 2**20:.0f} MiB can be used"
    return replace(sizing, reason=f"auto: {', '.join(tried)}; {of}")


def _what_would_fit(
    pieces: Sequence["Piece"], settings: Settings, world_size: int, room: float, *, label: Label
) -> str:
    """Return the least change that would make it fit. It is not for `auto` to make: each has a price."""
    from trainer.plan.costs import can_split  # noqa: PLC0415
    from trainer.plan.memory import estimate  # noqa: PLC0415

    least = None
    sizes = [n for n in range(2, world_size + 1) if world_size % n == 0]
    for change in _changes(world_size, sizes, [n for n in sizes if can_split(pieces, n)]):
        changed = settings.model_copy(update={"mode": "fsdp"} | change)
        try:
            need = estimate(pieces, size(changed, world_size, label=label), changed).total
        except (Fault, ValueError):  # the batch does not divide, or the model has fewer pieces
            continue
        if need <= room:
            names = " ".join(
                f"{label(name)}={str(value).lower()}" for name, value in change.items()
            )
            return f"{names} would, with {need / 2**20:.1f} MiB"
        least = min(need, least or need)
    known = f"{least / 2**20:.1f} MiB is the least known, " if least else ""
    return f"{known}so more ranks or larger devices"


def _changes(world_size: int, pp: Sequence[int], tp: Sequence[int]) -> Iterator[dict[str, object]]:
    """Yield changes of settings that take less memory than fsdp, the cheapest first.

    `pp` and `tp` are the sizes that these axes may have.
    """
    thrifty: list[dict[str, object]] = [
        {"micro_batch": 1},
        {"activation_checkpointing": True},
        {"micro_batch": 1, "activation_checkpointing": True},
    ]
    yield from thrifty
    meshes = [("tp", f"dp_shard={world_size // n},tp={n}") for n in tp]
    meshes += [("pp", f"pp={n},dp_shard={world_size // n}") for n in pp]
    for mode, mesh in meshes:
        yield from ({"mode": mode, "mesh": mesh} | more for more in ({}, *thrifty))
