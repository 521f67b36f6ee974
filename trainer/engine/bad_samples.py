"""Samples that cannot be read: named, left out of the means, and too many of them end the run.

Such a sample's place in the batch holds another one at weight 0, so shapes stay as they are, and a
step's gradient is the mean over the samples that counted. TRAINER_BAD_SAMPLES are allowed, each counted
once however often it comes; one more is Fault(65).

    lost = Lost(run, micro_batches); run.strategy.step(...); weight = lost.settle(weight)
"""

import logging
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Bad, Batch, InMemory
from trainer.distributed.runtime import from_all
from trainer.engine.run import Run

log = logging.getLogger("trainer")


class Lost:
    """What a step loses by samples that cannot be read; the ranks' sum travels while they compute."""

    def __init__(self, run: Run, batches: Iterable[Batch]) -> None:
        self._run = run
        self._here = [bad for batch in batches for bad in batch.bad if bad.weight]
        self._sum = torch.tensor([sum(bad.weight for bad in self._here)], dtype=torch.float64)
        self._pending: dist.Work | None = None
        # What is in memory was read whole, or there would be no run.
        if run.runtime.control is not None and not isinstance(run.training, InMemory):
            self._pending = dist.all_reduce(self._sum, group=run.runtime.control, async_op=True)

    def settle(self, weight: float) -> float:
        """Return what is left of `weight`, the global batch's, and make the gradient the mean over it.

        To be called after the backward pass, before gradients are clipped; every rank calls it. Raises
        Fault(65) when there are more bad samples than allowed.
        """
        if self._pending is not None:
            self._pending.wait()
        sizing = self._run.runtime.sizing
        # Ranks that share a replica read the same samples.
        lost = float(self._sum) * sizing.batches.replicas / sizing.world_size
        if not lost:
            return weight
        account(self._run, self._here, part="training")
        left = weight - lost
        if left <= 0:
            raise Fault(Exit.DATA, f"step {self._run.step + 1}: none of its samples can be read")
        for parameter in self._run.strategy.module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(weight / left)
        return left


def account(run: Run, here: Sequence[Bad], *, part: str) -> None:
    """Count what any rank found bad, report what is new, and raise Fault(65) beyond the allowance.

    All ranks call it together; `part` is training or test.
    """
    allowed = run.settings.bad_samples
    for bad in (bad for found in from_all(list(here), run.runtime) for bad in found):
        if (part, bad.index) in run.bad:
            continue
        run.bad.add((part, bad.index))
        text = f"{part} sample {bad.index}{bad.where}: {bad.why}"
        if len(run.bad) > allowed:
            raise Fault(
                Exit.DATA,
                f"{text}; {len(run.bad)} samples cannot be read, TRAINER_BAD_SAMPLES={allowed} are "
                "allowed: repair or remove it, or allow more",
            )
        run.report(
            "fault",
            kind="bad_sample",
            step=run.step + 1,
            part=part,
            index=bad.index,
            where=bad.where.strip(),
            why=bad.why,
            bad_samples=len(run.bad),
        )
        if run.runtime.is_main:
            log.warning("%s; left out (%s so far, %s allowed)", text, len(run.bad), allowed)
