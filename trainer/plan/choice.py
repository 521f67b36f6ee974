"""What `auto` chooses, by what a rank would have to hold: free of torch, so that the plan says the same.

TRAINER_MODE=auto TRAINER_DEVICE_MEMORY=80 python -m trainer
"""

from dataclasses import replace

from trainer.environment import Label
from trainer.plan.sizing import Sizing, size
from trainer.settings import Settings

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
        tried.append("not even that fits: try a smaller micro-batch, or a mesh with tp or pp")
    of = f"{_USABLE:.0%} of {memory / 2**20:.0f} MiB can be used"
    return replace(sizing, reason=f"auto: {', '.join(tried)}; {of}")
