"""Keep NaN and infinity out of the weights: skip the step, then roll back, then end with 72.

A step whose loss or gradient is not finite leaves weights, optimiser and buffers unchanged. Its
samples count as used, so the order of the data does not change. After TRAINER_NONFINITE_ALLOWANCE
such steps in a row the run goes back to a checkpoint before them. If it then fails again, it ends
with 72.

    guard = NonfiniteGuard(run)
    if guard.accepts(norm): ...
    guard.settle()              # before anything depends on what the guard has counted
"""

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW

from trainer.config.exits import Exit, Fault
from trainer.distributed.optim import skip_where
from trainer.distributed.tensors import by_kind, local_part
from trainer.distributed.torch_private import copy_all
from trainer.engine.resume import roll_back
from trainer.engine.run import Run

log = logging.getLogger("trainer")


class NonfiniteGuard:
    """Counts the skipped steps, with the same counts on every rank.

    `skipped` counts all skipped steps of this process, `in_a_row` those since the last finite step.

    If `device_decides`, the host learns the result of a step during the next one, or by `settle`. If it
    waited in every step, ResNet-50 would lose a tenth of its time on an H100: the host issues a step
    hardly faster than such a GPU computes it, so it could never work ahead.
    """

    def __init__(self, run: Run) -> None:
        self.skipped = 0
        self.in_a_row = 0
        self._run = run
        self._went_back_to: int | None = None
        self._last_skipped = 0
        places = {
            buffer: (module, name)
            for module in run.strategy.module.modules()
            for name, buffer in module.named_buffers(recurse=False)
        }
        self._kept = [_Buffers([places[one] for one in some]) for some in by_kind(places).values()]
        self._device_decides = device_decides(run)
        self._unknown: _Norm | None = None

    def accepts(self, norm: Tensor) -> bool:
        """Return whether to call the optimiser; `norm` is that of the global gradient.

        The norm is the same on every rank, so all ranks decide the same without a collective. A loss
        that is not finite makes the norm not finite (`weighted_loss`).
        """
        self.settle()
        if self.exhausted:
            return False
        optimizer, step = self._run.strategy.optimizer, self._run.step + 1
        if not self._device_decides:
            finite = self._judge(float(norm), step)
            for kept in self._kept:
                if finite:
                    kept.keep()
                else:
                    kept.restore()
            return finite
        is_finite = norm.isfinite()
        for kept in self._kept:
            kept.keep_if(is_finite)
        skip_where(optimizer, is_finite.logical_not())
        self._unknown = _Norm(norm, step)
        return True

    def settle(self) -> None:
        """Wait for the device's decision about the last step, if it is not known yet, and count it."""
        if (unknown := self._unknown) is not None:
            self._unknown = None
            self._judge(unknown.read(), unknown.step)

    def _judge(self, norm: float, step: int) -> bool:
        """Count and report a step by its gradient's norm; return whether it is finite."""
        run = self._run
        if math.isfinite(norm):
            self.in_a_row = 0
            run.loss_scale.count_success()
            return True
        if run.loss_scale.back_off():
            return False
        self.skipped += 1
        self.in_a_row += 1
        self._last_skipped = step
        run.report(
            "fault",
            kind="nonfinite",
            step=step,
            grad_norm=str(norm),
            skipped=self.skipped,
            in_a_row=self.in_a_row,
        )
        if run.runtime.is_main:
            log.warning(
                "step %s skipped: its gradient's norm is %s; its samples count as used (%s in a "
                "row, %s allowed)",
                step,
                norm,
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

        A checkpoint saved just before the first of them has the weights that failed, so an older one is
        loaded. Raises Fault(72) if there is none, or none newer than the last time.
        """
        run, last = self._run, self._last_skipped
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
        for kept in self._kept:
            kept.keep()
        run.report("fault", kind="rolled_back", step=last, to=run.step, checkpoint=run.saved)
        if run.runtime.is_main:
            log.warning("%s; going on from %s", wrong, run.saved)


def device_decides(run: Run) -> bool:
    """Return whether the device can skip an update by itself: on a GPU, with a fused optimiser.

    With averaged weights or fp16 the host decides, because it changes the average or the loss scale at
    each update. A compiled step skips by itself. Sharded parameters are not supported.
    """
    strategy = run.strategy
    return (
        run.runtime.device.type == "cuda"
        and type(strategy.optimizer) in (SGD, AdamW)
        and all(g["fused"] and not g.get("dampening") for g in strategy.optimizer.param_groups)
        and not any(isinstance(one, DTensor) for one in strategy.module.parameters())
        and strategy.whole_step is None
        and run.average is None
        and run.settings.precision != "fp16"
    )


class _Norm:
    """A step's norm, while it is copied to the host."""

    def __init__(self, norm: Tensor, step: int) -> None:
        self.step = step
        is_cuda = norm.device.type == "cuda"
        self._host = torch.empty(norm.shape, dtype=norm.dtype, pin_memory=is_cuda)
        self._host.copy_(norm, non_blocking=True)
        self._arrived = torch.cuda.Event() if is_cuda else None
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> float:
        if self._arrived is not None:
            self._arrived.synchronize()
        return float(self._host)


class _Buffers:
    """Buffers of one device and dtype, and their values after the last step that was not skipped.

    The forward pass updates the running statistics of BatchNorm before the result is known. It may also
    put another tensor in a buffer's place, so `places` are the modules and the buffers' names there.
    """

    def __init__(self, places: Sequence[tuple[nn.Module, str]]) -> None:
        self._places = places
        now = [local_part(getattr(*place).detach()) for place in places]
        self._flat = torch.cat([one.reshape(-1) for one in now])
        parts = self._flat.split([one.numel() for one in now])
        self._parts = [part.view_as(one) for part, one in zip(parts, now, strict=True)]

    def _now(self) -> list[Tensor]:
        """Return the buffers; in place of one of another size, such as a cache, what was kept."""
        now = []
        for (module, name), part in zip(self._places, self._parts, strict=True):
            found = getattr(module, name)
            same = isinstance(found, Tensor) and local_part(found).shape == part.shape
            now.append(local_part(found.detach()) if same else part)
        return now

    def keep(self) -> None:
        copy_all(self._parts, self._now())

    def restore(self) -> None:
        copy_all(self._now(), self._parts)

    def keep_if(self, wanted: Tensor) -> None:
        """Keep the buffers if `wanted`, shape (), else restore them; the device decides."""
        now = torch.cat([one.reshape(-1) for one in self._now()])
        torch.where(wanted.to(now.device), now, self._flat, out=self._flat)
        self.restore()
