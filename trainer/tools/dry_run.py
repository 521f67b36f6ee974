"""The dry run: builds a run of many ranks in one process and counts what each would need.

Mesh, model and strategy are the real ones, on torch's fake process group and fake tensors, which have
shapes and no memory. It takes one optimiser step and counts its tensors and collectives. `auto` chooses
its mode by it (`trainer/plan/auto.py`), and `render.py --plan` shows its result.

    TRAINER_DRY_RUN=1024 TRAINER_MODE=fsdp TRAINER_GLOBAL_BATCH=8192 python -m trainer
"""

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import torch

from trainer.config.contract import is_elastic
from trainer.config.environment import variable
from trainer.config.exits import Exit, Fault
from trainer.config.log import log_to_stderr
from trainer.config.settings import Settings
from trainer.distributed.runtime import Runtime
from trainer.plan import auto
from trainer.plan.memory import Need
from trainer.plan.sizing import Sizing, by_memory, size
from trainer.report.metrics import reporting
from trainer.tools.fake_step import needs_of_ranks

log = logging.getLogger("trainer")

SECONDS_FOR_ADVICE = 30


def run(settings: Settings, world_size: int) -> Exit:
    """Report what each rank would need, once for every stage of a pipeline.

    Raises Fault as the real run would.
    """
    log_to_stderr()
    sizing = size(settings, world_size, label=variable, uneven=is_elastic(os.environ))
    memory = _device_memory(settings)
    if memory and auto.is_open(settings, sizing):
        sizing, needs = _choose_by_memory(settings, sizing, memory)
    else:
        needs = needs_of_ranks(settings, sizing)
    here = Runtime(0, 0, torch.device("cpu"), "fake", sizing, None, None, 0)
    with reporting(settings, here) as report:
        for need in needs:
            report(
                "dry_run",
                mode=sizing.mode,
                reason=sizing.reason,
                world_size=world_size,
                **asdict(need),
            )
            log.info(_summary(need, memory))
    return Exit.DONE


def _device_memory(settings: Settings) -> float | None:
    """Return the bytes of a device: as set, else of the accelerator here; None where there is none."""
    if settings.device_memory:
        return settings.device_memory * 2**30
    if not torch.accelerator.is_available():
        return None
    return float(torch.accelerator.get_memory_info()[1])


def _choose_by_memory(
    settings: Settings, sizing: Sizing, memory: float
) -> tuple[Sizing, list[Need]]:
    """Return the first mode that fits, or the last that could be tried, with what its ranks need."""
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
        tried.append(f"not even that fits: {_what_would_fit(settings, sizing.world_size, room)}")
    limit = f"{auto.USABLE:.0%} of {memory / 2**20:.0f} MiB can be used"
    return replace(last[0], reason=f"auto: {', '.join(tried)}; {limit}"), last[1]


def _what_would_fit(settings: Settings, world_size: int, room: float) -> str:
    """Return the least change that would make it fit. It is not for `auto` to make: each has a price."""
    least, end = None, time.monotonic() + SECONDS_FOR_ADVICE
    for change in _changes(world_size):
        changed = settings.model_copy(update={"mode": "fsdp"} | change)
        if time.monotonic() > end:
            break
        try:
            needs = needs_of_ranks(changed, size(changed, world_size, label=variable))
        except Exception:  # noqa: BLE001, S112  # not with this batch, or this model: no advice
            continue
        peak = max(need.peak for need in needs)
        if peak <= room:
            names = " ".join(f"{variable(k)}={str(v).lower()}" for k, v in change.items())
            return f"{names} would, with {peak / 2**20:.1f} MiB"
        least = min(peak, least or peak)
    found = f"{least / 2**20:.1f} MiB is the least found, " if least else ""
    return f"{found}so more ranks or larger devices"


def _changes(world_size: int) -> Iterator[dict[str, object]]:
    """Yield changes of settings that take less memory than fsdp, the cheapest first."""
    savings: list[dict[str, object]] = [
        {"micro_batch": 1},
        {"activation_checkpointing": True},
        {"micro_batch": 1, "activation_checkpointing": True},
    ]
    yield from savings
    for mode in ("tp", "pp"):
        for ranks in (n for n in (2, 4, 8) if world_size % n == 0):
            mesh = f"{mode}={ranks},dp_shard={world_size // ranks}"
            yield from ({"mode": mode, "mesh": mesh} | saving for saving in ({}, *savings))


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
