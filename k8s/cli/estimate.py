"""Estimate a rank's memory by a dry run, where torch is installed, and compare it with its device's.

render.py k8s/jobs/03-digits-gpu.yaml --set resources.gpuMemory=80Gi --plan
"""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from k8s.base import quantity
from k8s.plan.model import Plan
from trainer.config.exits import Fault
from trainer.config.settings import Settings
from trainer.plan.memory import DryRun, Need, dry_run

_SECONDS = 60
_UNKNOWN = "to see it, run TRAINER_DRY_RUN={ranks} python -m trainer in the image"


@dataclass(frozen=True)
class Estimate:
    """Bytes of the rank that needs most, and of its device (None where the job file does not say).

    `mode` and `reason` are those of the dry run: `auto` chooses by it.
    """

    mode: str
    reason: str
    need: Need
    device: int | None

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by purpose. Their sum is not the peak, because not all exist at the same time."""
        names = ("parameters", "gradients", "optimizer", "average", "activations")
        return {name: getattr(self.need, name) for name in names}

    @property
    def saved(self) -> int:
        """Bytes of the rank's memory that a checkpoint holds."""
        return self.need.parameters + self.need.optimizer

    @property
    def is_too_much(self) -> bool:
        return self.device is not None and self.need.peak > self.device


def estimate(plan: Plan) -> Estimate | str:
    """Return the estimate, or the reason why there is none and how to get one."""
    if plan.program:
        return "not known for your own script"
    remedy = _UNKNOWN.format(ranks=plan.ranks)
    if find_spec("torch") is None:
        return f"not known, torch is not installed here; {remedy}"
    device = _device(plan)
    try:
        found = dry_run_of_job(
            plan.settings,
            plan.ranks,
            f"{plan.size.min_nodes}:{plan.size.nodes}" if plan.size.elastic else "",
            plan.container.environment.get("OMP_NUM_THREADS", "1"),
            device if plan.resources.gpu else None,
            plan.payload.folder,
        )
    except Fault as fault:
        return f"not known, {fault}; {remedy}"
    return Estimate(found.mode, found.reason, found.worst, device)


@cache  # for several launchers of a job
def dry_run_of_job(
    settings: Settings,
    world_size: int,
    nodes: str,
    threads: str,
    gpu_bytes: int | None,
    folder: str,
) -> DryRun:
    return dry_run(
        settings,
        world_size,
        seconds=_SECONDS,
        device_bytes=gpu_bytes,
        # The GPUs of this machine, if any, are not the job's.
        environment={"OMP_NUM_THREADS": threads, "PET_NNODES": nodes, "CUDA_VISIBLE_DEVICES": ""},
        folder=folder or None,
    )


def _device(plan: Plan) -> int | None:
    """Return the bytes of one rank's device: a GPU's as set, or its share of the node's memory."""
    if plan.resources.gpu:
        return plan.resources.gpu_memory
    if "memory" not in plan.resources.limits:
        return None
    memory = quantity.size(plan.resources.limits["memory"]) - plan.resources.shm_bytes
    return memory // plan.size.procs


def as_text(found: Estimate | str) -> str:
    """Return an estimate for people."""
    if isinstance(found, str):
        return found
    parts = ", ".join(f"{name} {binary(size)}" for name, size in found.parts.items())
    of_device = f" of {binary(found.device)}" if found.device else ""
    return f"about {binary(found.need.peak)}{of_device}: {parts}"


def as_json(found: Estimate | str) -> object:
    """Return an estimate for programs: null where there is none."""
    if isinstance(found, str):
        return None
    return {
        "mode": found.mode,
        "reason": found.reason,
        "parts": found.parts,
        "total": found.need.peak,
        "device": found.device,
    }


def binary(count: int) -> str:
    """Return bytes in the binary unit that keeps them short."""
    for suffix, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:,.1f} {suffix}"
    return f"{count} B"
