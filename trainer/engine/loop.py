"""The training loop: from the launch table to the summary, resumable at every step.

python -m trainer
"""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from trainer import health, strategies, tasks
from trainer.checkpoint.saver import Saver
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.order import mix, training_shares
from trainer.data.sets import Batch
from trainer.data.shared import once_per_machine
from trainer.distributed import optim
from trainer.distributed.precision import settle_tf32
from trainer.distributed.runtime import Runtime, as_fault, from_all, join, peak_memory, total
from trainer.engine.bad_samples import Lost
from trainer.engine.build import build as build_model
from trainer.engine.evaluation import evaluate
from trainer.engine.ledger import Ledger
from trainer.engine.nonfinite import Guard
from trainer.engine.replicas import compare, is_time_to_compare
from trainer.engine.resume import is_due, is_time_to_save, report_saved, resume, save, saving_to
from trainer.engine.run import Run, example
from trainer.preflight.check import preflight
from trainer.report.events import Report
from trainer.report.metrics import reporting
from trainer.watch.exhaustion import out_of_memory
from trainer.watch.stop import Stop, stop_requests
from trainer.watch.watchdog import telling_when_late, watching

log = logging.getLogger("trainer")


def run(settings: Settings) -> Exit:
    """Train as the settings say and return the exit code; raises whatever went wrong."""
    with (
        telling_when_late(settings),
        nullcontext(tasks.load(settings)) as task,
        join(settings) as runtime,
        reporting(settings, runtime) as report,
        watching(settings, runtime, report) as pulse,
        saving_to(settings, runtime) as saver,
        ExitStack() as ending,
    ):
        try:
            current = _prepare(settings, runtime, report, task, saver)
            ending.callback(current.strategy.close)
            _announce(current)
            resume(current)
            name = health.rank(runtime.local_rank)
            sign = health.sign(settings.health, name, limit=settings.health_limit)
            with stop_requests(runtime, sign) as stop:
                pulse.steps, pulse.calls = lambda: current.step, lambda: stop.calls
                return _train(current, stop)
        except Exception as error:
            short = out_of_memory(error, settings, runtime)
            fault = short or as_fault(error)
            report("error", code=int(fault.code), message=str(fault))
            if short:
                raise short from error
            raise


def _prepare(
    settings: Settings, runtime: Runtime, report: Report, task: tasks.Task, saver: Saver
) -> Run:
    training = once_per_machine(partial(task.data, train=True), runtime)
    test = once_per_machine(partial(task.data, train=False), runtime)
    if not (len(training) and len(test)):
        raise Fault(
            Exit.DATA,
            f"task {settings.task}: {len(training)} training and {len(test)} test samples; "
            "both need at least one",
        )
    fitness = preflight(settings, runtime, training)
    torch.manual_seed(settings.seed)
    settle_tf32(settings, runtime.device)
    model = build_model(task, settings, runtime)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    context = strategies.Context(
        settings, runtime, task.loss, partial(example, training, settings, runtime.sizing.batches)
    )
    strategy = strategies.build(runtime.sizing.mode, model, context)
    return Run(
        settings,
        runtime,
        report,
        task,
        strategy,
        training,
        test,
        saver,
        parameters,
        fitness=fitness,
    )


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
        parameters=run.parameters,
        samples=len(run.training),
        **{name: value for name, value in asdict(sizing.batches).items() if name != "replicas"},
        **run.strategy.notes,
        precision=run.settings.precision,
        lr=optim.peak_rate(run.settings),
        lr_why=optim.why(run.settings),
        preflight=run.fitness,
        out=str(run.settings.run_folder),
    )


def _train(run: Run, stop: Stop) -> Exit:
    began = time.monotonic()
    first_sample = run.samples
    guard = Guard(run)
    stopped = _take_steps(run, guard, stop)
    while guard.exhausted:
        guard.go_back()
        stopped = _take_steps(run, guard, stop)
    seconds = time.monotonic() - began
    scored = bool(run.settings.checkpoint_keep_best) and not stopped
    result = evaluate(run, stop) if scored else None
    save(run, metric=result, last=True)
    if not (stopped or scored):
        result = evaluate(run, stop)
    if result is None:
        run.report("fault", kind="stopped", signal=stop.name, step=run.step, checkpoint=run.saved)
        if run.runtime.is_main:
            log.info("stopped after step %s; checkpoint %s", run.step, run.saved or "none")
        return Exit.STOPPED
    run.report(
        "summary",
        steps=run.step,
        **{run.task.metric: result},
        samples_per_s=(run.samples - first_sample) / seconds
        if run.samples > first_sample
        else None,
        seconds=seconds,
        skipped_steps=guard.skipped,
        checkpoint=run.saved,
        mode=run.runtime.sizing.mode,
        world_size=run.runtime.world_size,
        peak_memory=max(from_all(peak_memory(run.runtime.device), run.runtime)),
    )
    return Exit.DONE


def _take_steps(run: Run, guard: Guard, stop: Stop) -> bool:
    """Train to the end, or until the guard is exhausted; return True when stopped before."""
    settings, runtime, order = run.settings, run.runtime, run.order
    steps = run.step + run.remaining
    ledger = Ledger(run)
    shares = training_shares(order, runtime.sizing.batches, runtime.data_rank, start=run.samples)
    batches = run.training_batches(ledger.noting(shares))
    mark, mark_samples = time.monotonic(), run.samples
    while run.step < steps:
        report_saved(run)
        if stop.agreed(save=is_due(run)):
            return True
        # What a layer draws depends on nothing but this, so a resumed run draws the same.
        torch.manual_seed(mix(settings.seed, run.step, runtime.draw_rank))
        rate = optim.learning_rate(run.step, steps, settings)
        optim.set_learning_rate(run.strategy.optimizer, rate)
        samples = min(run.batch, order.end - run.samples)
        weight = order.weight(run.samples, samples)
        micro_batches = list(islice(batches, runtime.sizing.batches.accumulation))
        loss_sum, norm, weight = _take_step(run, guard, micro_batches, weight)
        epoch = run.samples // order.length
        run.step, run.samples = run.step + 1, run.samples + samples
        ledger.done(run.step)
        last = run.step == steps
        if is_time_to_compare(run):
            compare(run)
        saving = is_time_to_save(run) or stop.save
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
        if last or guard.exhausted:
            break
        pause = time.monotonic()
        evaluating = _is_time_to_evaluate(run, epoch, order.length)
        scored = evaluating and settings.checkpoint_keep_best  # then saved below, with its score
        if saving and not scored and not guard.in_a_row:
            save(run)
        if evaluating:
            metric = evaluate(run, stop)
            if metric is None:
                return True
            if scored and not guard.in_a_row:
                save(run, metric=metric)
        mark += time.monotonic() - pause
    return False


def _take_step(
    run: Run, guard: Guard, micro_batches: Sequence[Batch], weight: float
) -> tuple[Tensor, Tensor, float]:
    """Update the weights; return this rank's sum of losses, the gradient's norm and the step's weight.

    The weight is less than it was when samples could not be read.
    """
    strategy, lost = run.strategy, Lost(run, micro_batches)
    loss_sum = strategy.step(micro_batches, weight / run.loss_scale.value)
    weight = lost.settle(weight)
    run.loss_scale.unscale(strategy.module.parameters())
    norm = strategy.clip(run.settings.clip_norm)
    if guard.accepts(norm):
        strategy.optimizer.step()
        if run.average:
            run.average.update()
    strategy.optimizer.zero_grad()
    return loss_sum, norm, weight


def _mean_loss(run: Run, loss_sum: torch.Tensor, weight: float) -> float:
    """Return the global batch's mean loss."""
    return total([float(loss_sum)], run.runtime)[0] / weight


def _is_time_to_evaluate(run: Run, epoch: int, length: int) -> bool:
    if run.settings.eval_steps is None:
        return run.samples // length > epoch
    return bool(run.settings.eval_steps) and run.step % run.settings.eval_steps == 0
