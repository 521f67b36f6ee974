"""What the ranks of a job will hold, against what their devices have; free of torch.

render.py k8s/jobs/digits-gpu.yaml --set resources.gpuMemory=80Gi --plan
"""

from dataclasses import asdict, dataclass

from k8s.base import quantity
from k8s.plan.model import Plan
from trainer.plan import costs, memory


@dataclass(frozen=True)
class Estimate:
    """Bytes of the worst rank by what they are for, and of its device; None where that is not said."""

    parts: dict[str, int]
    total: int
    device: int | None

    @property
    def saved(self) -> int:
        """Bytes of it that a checkpoint holds."""
        return self.parts["parameters"] + self.parts["optimizer"]

    @property
    def too_much(self) -> bool:
        return self.device is not None and self.total > self.device


def of(plan: Plan) -> Estimate | str:
    """Return the estimate, or why there is none."""
    pieces = costs.pieces_of(plan.settings.task)
    if pieces is None:
        return "not known for a task of your own; try TRAINER_DRY_RUN"
    if not costs.can_split(pieces, tp := plan.sizing.mesh["tp"]):
        return f"there is none: the model of task {plan.settings.task} cannot be split over tp={tp}"
    threads = int(plan.container.environment.get("OMP_NUM_THREADS", "1"))
    try:
        need = memory.estimate(pieces, plan.sizing, plan.settings, threads=threads)
    except ValueError as error:
        return f"there is none: {error}"
    parts = {name: size for name, size in asdict(need).items() if name != "sent"}
    return Estimate(parts, need.total, _device(plan))


def _device(plan: Plan) -> int | None:
    """Return what one rank's device has: of a GPU as said, of a CPU its share beside /dev/shm."""
    if plan.resources.gpu:
        return plan.resources.gpu_memory
    if "memory" not in plan.resources.limits:
        return None
    return (
        quantity.size(plan.resources.limits["memory"]) - plan.resources.shm_bytes
    ) // plan.size.procs


def in_words(estimate: Estimate | str) -> str:
    """Return an estimate for people."""
    if isinstance(estimate, str):
        return estimate
    parts = ", ".join(f"{name} {in_binary(size)}" for name, size in estimate.parts.items())
    of_device = f" of {in_binary(estimate.device)}" if estimate.device else ""
    return f"{in_binary(estimate.total)}{of_device}: {parts}"


def as_json(estimate: Estimate | str) -> object:
    """Return an estimate for programs: null where there is none."""
    return None if isinstance(estimate, str) else asdict(estimate)


def in_binary(count: int) -> str:
    """Return bytes in the binary unit that keeps them short."""
    for suffix, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:,.1f} {suffix}"
    return f"{count} B"
