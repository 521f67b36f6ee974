"""Samples that cannot be read are reported and left out of the means; too many of them end the run.

Such a sample is replaced in its batch by another one with weight 0. The batch keeps its shape, and the
step's gradient is the mean over the samples that could be read. TRAINER_BAD_SAMPLES different ones are
allowed; one more is Fault(65).

    skipped = SkippedSamples(run, micro_batches)
    run.strategy.step(micro_batches, weight)
    weight = skipped.rescale_gradients(weight)

A compiled step needs the weight before its call: `weight = skipped.left_of(weight)`.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Batch, UnreadableSample
from trainer.distributed.messages import from_all
from trainer.engine.run import Run

log = logging.getLogger("trainer")


class SkippedSamples:
    """The weight of a step's unreadable samples, summed over the ranks during the computation."""

    def __init__(self, run: Run, batches: Iterable[Batch]) -> None:
        self._run = run
        self._skipped = [one for batch in batches for one in batch.unreadable if one.weight]
        self._sum: Tensor | None = None
        self._pending: dist.Work | None = None
        if run.is_in_memory:  # all samples have been read already
            return
        self._sum = torch.tensor([sum(one.weight for one in self._skipped)], dtype=torch.float64)
        if run.runtime.control is not None:
            self._pending = dist.all_reduce(self._sum, group=run.runtime.control, async_op=True)

    def rescale_gradients(self, weight: float) -> float:
        """Return the part of `weight` that was read, and scale the gradients to it: see left_of.

        Call it after the backward pass and before clipping.
        """
        left = self.left_of(weight)
        if left != weight:
            for parameter in self._run.strategy.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(weight / left)
        return left

    def left_of(self, weight: float) -> float:
        """Return the part of `weight`, that of the global batch, that was read. Every rank calls it.

        Raises Fault(65) for more bad samples than allowed.
        """
        if self._sum is None:
            return weight
        if self._pending is not None:
            self._pending.wait()
        sizing = self._run.runtime.sizing
        # The ranks of one replica read the same samples, so each sample was summed several times.
        skipped = float(self._sum) * sizing.batches.replicas / sizing.world_size
        if not skipped:
            return weight
        count_bad(self._run, self._skipped, part="training")
        left = weight - skipped
        if left <= 0:
            raise Fault(Exit.DATA, f"step {self._run.step + 1}: none of its samples can be read")
        return left


def count_bad(run: Run, found_here: Sequence[UnreadableSample], *, part: str) -> None:
    """Count the bad samples of all ranks, report new ones, and raise Fault(65) for too many.

    All ranks call it together. `part` is "training" or "test".
    """
    allowed = run.settings.bad_samples
    for sample in chain(*from_all(list(found_here), run.runtime, list[UnreadableSample])):
        if (part, sample.index) in run.bad:
            continue
        run.bad.add((part, sample.index))
        where = f"({sample.file})" if sample.file else ""
        text = f"{part} sample {f'{sample.index} {where}'.strip()}: {sample.reason}"
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
            index=sample.index,
            where=where,
            why=sample.reason,
            bad_samples=len(run.bad),
        )
        if run.runtime.is_main:
            log.warning("%s; left out (%s so far, %s allowed)", text, len(run.bad), allowed)
