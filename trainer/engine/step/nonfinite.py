"""Keep NaN and infinity out of the weights: skip the step, then roll back, then end with 72.

A step whose loss or gradient is not finite leaves weights, optimiser and buffers unchanged. Its
samples count as used, so the order of the data does not change. After TRAINER_NONFINITE_ALLOWANCE
such steps in a row the run goes back to a checkpoint from before them. If it fails again from there,
it ends with 72.

    guard = NonfiniteGuard(run)
    if guard.accepts(norm): ...
"""

import logging
import math

from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.distributed.torch_private import copy_all
from trainer.engine.resume import roll_back
from trainer.engine.run import Run

log = logging.getLogger("trainer")


class NonfiniteGuard:
    """Counts the skipped steps, alike on every rank.

    `skipped` counts all of this process, `in_a_row` those since the last finite step.
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

        The norm is the same on every rank, so all ranks decide alike without a collective. A loss that
        is not finite makes the norm not finite (`weighted_loss`).
        """
        if math.isfinite(norm):
            self.in_a_row = 0
            self._run.loss_scale.count_success()
            copy_all(self._kept, self._buffers)
            return True
        # The forward pass has already updated the running statistics of BatchNorm.
        copy_all(self._buffers, self._kept)
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
        """Whether as many steps in a row were skipped as are allowed."""
        return self.in_a_row >= self._run.settings.nonfinite_allowance

    def go_back(self) -> None:
        """Load the newest checkpoint from before the skipped steps; all ranks call it together.

        The weights of a checkpoint saved just before the first of them are the ones that failed, so an
        older one is loaded. Raises Fault(72) when there is none, or none newer than the last time.
        """
        run, last = self._run, self._run.step
        first = last - self.in_a_row + 1
        wrong = f"steps {first} to {last}: the loss or the gradient was not finite"
        problem, settings = "", run.settings
        if not roll_back(run, before=first - 1):
            problem = f"and there is no checkpoint from before step {first - 1}"
        elif self._went_back_to is not None and run.step <= self._went_back_to:
            problem = f"again after going back to step {run.step}"
        if problem:
            raise Fault(
                Exit.DIVERGED,
                f"{wrong}, {problem}; try a smaller TRAINER_LR (now {settings.lr}), a smaller "
                f"TRAINER_CLIP_NORM (now {settings.clip_norm}), more TRAINER_WARMUP_STEPS (now "
                f"{settings.warmup_steps})",
            )
        self._went_back_to, self.in_a_row = run.step, 0
        copy_all(self._kept, self._buffers)
        run.report("fault", kind="rolled_back", step=last, to=run.step, checkpoint=run.saved)
        if run.runtime.is_main:
            log.warning("%s; going on from %s", wrong, run.saved)
