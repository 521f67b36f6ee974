"""Keeps updates that are no numbers away from the weights: skips them, goes back, gives up.

A step whose loss or gradient is not finite leaves weights, optimiser and buffers as they were. Its
samples count as used all the same, so the order of the data stays what it would have been. After
`TRAINER_NONFINITE_ALLOWANCE` such steps in a row the run goes back to a checkpoint from before them;
when it comes to the same end from there, it ends with 72.

    guard = NonfiniteGuard(run)
    if guard.accepts(norm): ...
"""

import logging
import math

from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.engine.resume import roll_back
from trainer.engine.run import Run

log = logging.getLogger("trainer")


class NonfiniteGuard:
    """What one rank knows of the steps that were skipped: the same as every other rank.

    `skipped` counts those of this process, `in_a_row` those since the last finite step.
    """

    def __init__(self, run: Run) -> None:
        self.skipped = 0
        self.in_a_row = 0
        self._run = run
        self._went_back_to: int | None = None
        self._buffers = list(run.strategy.module.buffers())
        self._kept = [buffer.detach().clone() for buffer in self._buffers]

    def accepts(self, norm: Tensor) -> bool:
        """Return whether the step may update the weights; `norm` is the global gradient's.

        The norm is the same on every rank, so all answer alike without asking each other. A loss that
        is no number makes the gradient none (`weighted_loss`).
        """
        if math.isfinite(norm):
            self.in_a_row = 0
            self._run.loss_scale.succeeded()
            for kept, buffer in zip(self._kept, self._buffers, strict=True):
                kept.copy_(buffer)
            return True
        # The forward pass has already put the batch into the running statistics of a BatchNorm.
        for kept, buffer in zip(self._kept, self._buffers, strict=True):
            buffer.copy_(kept)
        if self._run.loss_scale.back_off():
            return False
        self.skipped += 1
        self.in_a_row += 1
        run, step = self._run, self._run.step + 1
        run.report(
            "fault",
            kind="nonfinite",
            step=step,
            grad_norm=str(float(norm)),
            skipped=self.skipped,
            in_a_row=self.in_a_row,
        )
        if run.runtime.is_main:
            log.warning(
                "step %s skipped: its gradient's norm is %s; its samples count as used (%s in a "
                "row, %s allowed)",
                step,
                float(norm),
                self.in_a_row,
                run.settings.nonfinite_allowance,
            )
        return False

    @property
    def exhausted(self) -> bool:
        """Whether so many steps in a row were skipped that it is time to go back."""
        return self.in_a_row >= self._run.settings.nonfinite_allowance

    def go_back(self) -> None:
        """Load the newest checkpoint from before the skipped steps; all ranks call it together.

        One that was saved just before the first of them holds the weights that they failed with, so an
        older one is taken. Raises Fault(72) when there is none, or none newer than at the last time.
        """
        run, last = self._run, self._run.step
        first = last - self.in_a_row + 1
        wrong = f"steps {first} to {last}: the loss or the gradient was not finite"
        if not roll_back(run, before=first - 1):
            raise _diverged(
                run, f"{wrong}, and there is no checkpoint from before step {first - 1}"
            )
        if self._went_back_to is not None and run.step <= self._went_back_to:
            raise _diverged(run, f"{wrong}, again after going back to step {run.step}")
        self._went_back_to, self.in_a_row = run.step, 0
        for kept, buffer in zip(self._kept, self._buffers, strict=True):
            kept.copy_(buffer)
        run.report("fault", kind="rolled_back", step=last, to=run.step, checkpoint=run.saved)
        if run.runtime.is_main:
            log.warning("%s; going on from %s", wrong, run.saved)


def _diverged(run: Run, wrong: str) -> Fault:
    settings = run.settings
    return Fault(
        Exit.DIVERGED,
        f"{wrong}; try a smaller TRAINER_LR (now {settings.lr}), a smaller TRAINER_CLIP_NORM (now "
        f"{settings.clip_norm}), more TRAINER_WARMUP_STEPS (now {settings.warmup_steps})",
    )
