"""The training loop: from the launch table to the summary, resumable at every step.

python -m trainer
"""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice

import torch
from torch import Tensor

from trainer import checkpoint, optim, strategies, tasks
from trainer.data import Batch, Data, Order, evaluation_shares, load, mix, training_shares
from trainer.exits import Exit, Fault
from trainer.metrics import Report, reporting
from trainer.runtime import Runtime, as_fault, join, say, total
from trainer.settings import Settings
from trainer.stop import Stop, stop_requests


@dataclass
class Run:
    """What the loop works on. `step` optimiser steps are done, `samples` of the stream used."""

    settings: Settings
    runtime: Runtime
    report: Report
    task: tasks.Task
    strategy: strategies.Strategy
    training: Data
    test: Data
    step: int = 0
    samples: int = 0
    saved: str | None = None
    saved_step: int = 0

    @property
    def batch(self) -> int:
        """Samples per optimiser step, over all ranks."""
        return self.runtime.sizing.batches.global_batch

    @property
    def saved_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser whose state this rank saves and loads."""
        return self.strategy.saved_optimizer or self.strategy.optimizer

    @property
    def remaining(self) -> int:
        """Optimiser steps still to do."""
        if self.settings.steps is not None:
            return max(0, self.settings.steps - self.step)
        stream = self.settings.epochs * len(self.training)
        return math.ceil(max(0, stream - self.samples) / self.batch)

    @property
    def order(self) -> Order:
        """The stream of training samples; an epoch is never cut short, nor a step count."""
        length = len(self.training)
        end = self.samples + self.remaining * self.batch
        if self.settings.steps is None:
            end = min(end, max(self.samples, self.settings.epochs * length))
        return Order(self.settings.seed, length, end)


def run(settings: Settings) -> Exit:
    """Train as the settings say and return the exit code; raises whatever went wrong."""
    task = tasks.load(settings)
    with join(settings) as runtime, reporting(settings, runtime) as report:
        try:
            current = _prepare(settings, runtime, report, task)
            _announce(current)
            _resume(current)
            with stop_requests(runtime) as stop:
                return _train(current, stop)
        except Exception as error:
            fault = as_fault(error)
            report("error", code=int(fault.code), message=str(fault))
            raise


def _prepare(settings: Settings, runtime: Runtime, report: Report, task: tasks.Task) -> Run:
    torch.manual_seed(settings.seed)
    model = task.model().to(runtime.device, _dtype(settings))
    context = strategies.Context(settings, runtime, task.loss)
    strategy = strategies.build(runtime.sizing.mode, model, context)
    training, test = task.data(train=True), task.data(train=False)
    if not (len(training) and len(test)):
        raise Fault(
            Exit.DATA,
            f"task {settings.task}: {len(training)} training and {len(test)} test samples; "
            "both need at least one",
        )
    return Run(settings, runtime, report, task, strategy, training, test)


def _dtype(settings: Settings) -> torch.dtype:
    return torch.float64 if settings.precision == "fp64" else torch.float32


def _announce(run: Run) -> None:
    runtime, sizing = run.runtime, run.runtime.sizing
    run.report(
        "launch",
        task=run.settings.task,
        mode=sizing.mode,
        why=sizing.reason,
        nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        world_size=sizing.world_size,
        mesh={axis: extent for axis, extent in sizing.mesh.items() if extent > 1},
        device=str(runtime.device),
        backend=runtime.backend,
        master=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}" if runtime.mesh else None,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        parameters=sum(p.numel() for p in run.strategy.module.parameters()),
        samples=len(run.training),
        **{name: value for name, value in asdict(sizing.batches).items() if name != "replicas"},
        precision=run.settings.precision,
        out=str(run.settings.run_folder),
    )


def _resume(run: Run) -> None:
    settings = run.settings
    folder = settings.run_folder / "checkpoints"
    path = checkpoint.find(settings.resume, folder, runtime=run.runtime)
    if path is None:
        return
    progress = checkpoint.load(path, run.strategy.module, run.saved_optimizer, runtime=run.runtime)
    for name in ("task", "seed"):
        then, now = getattr(progress, name), getattr(settings, name)
        if then != now:
            raise Fault(
                Exit.CONFIG,
                f"TRAINER_{name.upper()}={now!r}: checkpoint {path} was trained with {then!r}; "
                "set that, another TRAINER_OUT, or TRAINER_RESUME=never",
            )
    run.step, run.samples = progress.step, progress.samples
    run.saved, run.saved_step = str(path), progress.step
    run.report("checkpoint", action="resumed", step=run.step, path=run.saved)
    if run.runtime.is_main:
        say(f"resumed from {path}: {run.step} steps done, {run.remaining} to go")


def _train(run: Run, stop: Stop) -> Exit:
    began = time.monotonic()
    first_sample = run.samples
    stopped = _take_steps(run, stop)
    seconds = time.monotonic() - began
    if run.step > run.saved_step:
        _save(run)
    result = None if stopped else _evaluate(run, stop)
    if result is None:
        run.report("fault", kind="stopped", signal=stop.name, step=run.step, checkpoint=run.saved)
        if run.runtime.is_main:
            say(f"stopped after step {run.step}; checkpoint {run.saved}")
        return Exit.STOPPED
    run.report(
        "summary",
        steps=run.step,
        **{run.task.metric: result},
        samples_per_s=(run.samples - first_sample) / seconds
        if run.samples > first_sample
        else None,
        seconds=seconds,
        checkpoint=run.saved,
        mode=run.runtime.sizing.mode,
        world_size=run.runtime.world_size,
    )
    return Exit.DONE


def _take_steps(run: Run, stop: Stop) -> bool:
    """Train to the end; return True when stopped before it."""
    settings, runtime, order = run.settings, run.runtime, run.order
    steps = run.step + run.remaining
    shares = training_shares(order, runtime.sizing.batches, runtime.data_rank, start=run.samples)
    batches = _batches(run, run.training, shares)
    mark, mark_samples = time.monotonic(), run.samples
    while run.step < steps:
        if stop.agreed():
            return True
        # What a layer draws depends on nothing but this, so a resumed run draws the same.
        torch.manual_seed(mix(settings.seed, run.step, runtime.data_rank))
        rate = optim.learning_rate(run.step, steps, settings)
        optim.set_learning_rate(run.strategy.optimizer, rate)
        weight = min(run.batch, order.end - run.samples)
        micro_batches = list(islice(batches, runtime.sizing.batches.accumulation))
        loss_sum = run.strategy.step(micro_batches, weight)
        norm = run.strategy.clip(settings.clip_norm)
        run.strategy.optimizer.step()
        run.strategy.optimizer.zero_grad()
        epoch = run.samples // order.length
        run.step, run.samples = run.step + 1, run.samples + weight
        last = run.step == steps
        saving = settings.checkpoint_steps and run.step % settings.checkpoint_steps == 0
        if last or saving or run.step % settings.log_steps == 0 or run.step == 1:
            now = time.monotonic()
            run.report(
                "step",
                step=run.step,
                steps=steps,
                epoch=epoch,
                loss=_mean_loss(run, loss_sum, weight),
                grad_norm=float(norm),
                lr=rate,
                samples=run.samples,
                samples_per_s=(run.samples - mark_samples) / (now - mark),
            )
            mark, mark_samples = now, run.samples
        if last:
            break
        pause = time.monotonic()
        if saving:
            _save(run)
        if _is_time_to_evaluate(run, epoch, order.length) and _evaluate(run, stop) is None:
            return True
        mark += time.monotonic() - pause
    return False


def _batches(run: Run, data: Data, shares: Iterator[tuple[Tensor, Tensor]]) -> Iterator[Batch]:
    settings = run.settings
    return load(
        data,
        shares,
        device=run.runtime.device,
        workers=settings.workers,
        dtype=_dtype(settings),
    )


def _mean_loss(run: Run, loss_sum: torch.Tensor, weight: float) -> float:
    """Return the global batch's mean loss. Raises Fault(72) when it is not a number."""
    loss = total([float(loss_sum)], run.runtime)[0] / weight
    if not math.isfinite(loss):
        raise Fault(
            Exit.DIVERGED,
            f"step {run.step}: the loss is {loss}; try a smaller TRAINER_LR (now "
            f"{run.settings.lr}) or a smaller TRAINER_CLIP_NORM (now {run.settings.clip_norm})",
        )
    return loss


def _is_time_to_evaluate(run: Run, epoch: int, length: int) -> bool:
    if run.settings.eval_steps is None:
        return run.samples // length > epoch
    return bool(run.settings.eval_steps) and run.step % run.settings.eval_steps == 0


def _save(run: Run) -> None:
    began = time.monotonic()
    progress = checkpoint.Progress(
        step=run.step,
        samples=run.samples,
        task=run.settings.task,
        seed=run.settings.seed,
        global_batch=run.batch,
    )
    path = checkpoint.save(
        run.settings.run_folder / "checkpoints",
        progress,
        run.strategy.module,
        run.saved_optimizer,
        runtime=run.runtime,
        keep=run.settings.checkpoint_keep,
    )
    run.saved, run.saved_step = str(path), run.step
    seconds = time.monotonic() - began
    run.report("checkpoint", action="saved", step=run.step, path=run.saved, seconds=seconds)


@torch.no_grad()
def _evaluate(run: Run, stop: Stop) -> float | None:
    """Return the metric over the test set, every sample counted once; None when stopped meanwhile."""
    runtime = run.runtime
    sums = torch.zeros(3, dtype=torch.float64)
    run.strategy.module.eval()
    shares = evaluation_shares(len(run.test), runtime.sizing.batches, runtime.data_rank)
    for batch in _batches(run, run.test, shares):
        if stop.agreed():
            return None
        outputs = run.strategy.forward(batch.inputs)
        losses = run.task.loss(outputs, batch.targets)
        scores = run.task.score(outputs, batch.targets)
        counted = batch.weights > 0
        sums += (
            torch.stack([losses[counted].sum(), scores[counted].sum(), counted.sum()])
            .double()
            .cpu()
        )
    run.strategy.module.train()
    loss, score, count = total(sums.tolist(), runtime)
    if count != len(run.test):
        raise Fault(
            Exit.CODE, f"evaluation counted {count:.0f} samples of {len(run.test)}: a defect here"
        )
    metric = score / count
    run.report(
        "eval",
        step=run.step,
        loss=loss / count,
        metric=run.task.metric,
        **{run.task.metric: metric},
        samples=int(count),
    )
    return metric
