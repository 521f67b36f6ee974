"""The dry run: builds a run of many ranks in one process and counts what each would need.

Mesh, model and strategy are the real ones, on torch's fake process group and fake tensors, which have
shapes and no memory. It takes one optimiser step and counts its tensors and collectives. `auto` chooses
its mode by it (`trainer/plan/auto.py`), and `render.py --plan` shows its result.

    TRAINER_DRY_RUN=1024 TRAINER_MODE=fsdp TRAINER_GLOBAL_BATCH=8192 python -m trainer
"""

import logging
import os
import time
from dataclasses import asdict, replace

import torch

from trainer.config.contract import is_elastic
from trainer.config.environment import variable
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.plan import auto
from trainer.plan.memory import Need
from trainer.plan.sizing import Sizing, by_memory, size
from trainer.report.metrics import shown
from trainer.tools.fake_step import needs_of_ranks

log = logging.getLogger("trainer")

# Each has a price, so it is not for `auto` to choose.
_ADVICE = (
    "not even that fits; more ranks, TRAINER_MICRO_BATCH=1, TRAINER_ACTIVATION_CHECKPOINTING=true or a "
    "TRAINER_MESH with tp or pp may"
)


def run(settings: Settings, world_size: int) -> Exit:
    """Print what each rank would need, once for every stage of a pipeline.

    Raises Fault as the real run would.
    """
    sizing = size(settings, world_size, label=variable, uneven=is_elastic(os.environ))
    memory = None  # bytes of a device: as set, or of the accelerator here
    if settings.device_memory:
        memory = settings.device_memory * 2**30
    elif torch.accelerator.is_available():
        memory = float(torch.accelerator.get_memory_info()[1])
    if memory and auto.is_open(settings, sizing):
        sizing, needs = _choose_by_memory(settings, sizing, memory)
    else:
        needs = needs_of_ranks(settings, sizing)
    about = {"mode": sizing.mode, "reason": sizing.reason, "world_size": world_size}
    # The run folder stays as it is: a run that begins there later would count the time since as its own.
    with shown(settings) as show:
        for need in needs:
            show({"event": "dry_run", "time": time.time(), **about, **asdict(need)})
            log.info(_summary(need, memory))
    return Exit.DONE


def _choose_by_memory(
    settings: Settings, sizing: Sizing, memory: float
) -> tuple[Sizing, list[Need]]:
    """Return the first mode that fits, or the last that could be tried, with what its ranks need.

    Raises the Fault of the first mode if none could be tried.
    """
    room = auto.USABLE * memory
    tried: list[str] = []
    last: tuple[Sizing, list[Need]] = sizing, []
    for mode in by_memory():
        changed = settings.model_copy(update={"mode": mode})
        try:
            candidate = size(
                changed, sizing.world_size, label=variable, uneven=is_elastic(os.environ)
            )
            last = candidate, needs_of_ranks(changed, candidate)
        except Fault as fault:
            tried.append(f"{mode} is not possible ({fault})")
            continue
        peak = max(need.peak for need in last[1])
        tried.append(f"{mode} needs {peak / 2**20:.1f} MiB")
        if peak <= room:
            break
    else:
        tried.append(_ADVICE)
    limit = f"{auto.USABLE:.0%} of {memory / 2**20:.0f} MiB can be used"
    needs = last[1] or needs_of_ranks(settings, sizing)  # which raises why it is not possible
    return replace(last[0], reason=f"auto: {', '.join(tried)}; {limit}"), needs


def _summary(need: Need, memory: float | None) -> str:
    names = ("parameters", "gradients", "optimizer", "average", "activations")
    parts = ", ".join(f"{name} {_size(getattr(need, name))}" for name in names)
    sent = ", ".join(f"{name} {_size(size)}" for name, size in need.sent.items()) or "nothing"
    text = (
        f"rank {need.rank} needs {_size(need.peak)} at the peak of a step ({parts}) "
        f"and sends {sent}"
    )
    if memory is None:
        return text
    fits = need.peak <= memory
    return f"{text}; it {'fits' if fits else 'does NOT fit'} in {memory / 2**30:g} GiB"


def _size(count: float) -> str:
    """Return bytes with the unit that keeps them short."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
