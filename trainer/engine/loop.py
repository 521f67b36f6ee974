"""The training run, in order: prepare, report the launch, resume, train, summarise.

python -m trainer
"""

import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from trainer import health, strategies, tasks
from trainer.checkpoint.saver import Saver
from trainer.commit import code_here
from trainer.config.environment import environment_of
from trainer.config.exits import Exit, Fault
from trainer.config.own_settings import own_settings, variables_of
from trainer.config.settings import Settings
from trainer.data.order import mix, training_shares
from trainer.data.sets import Batch
from trainer.data.shared import once_per_machine
from trainer.data.task_contract import own_of
from trainer.distributed import optim
from trainer.distributed.generators import seed
from trainer.distributed.messages import from_all
from trainer.distributed.precision import set_tf32
from trainer.distributed.runtime import Runtime, as_fault, join, peak_memory, total
from trainer.engine import build
from trainer.engine.evaluation import evaluate
from trainer.engine.ledger import Ledger
from trainer.engine.replicas import compare
from trainer.engine.resume import record, report_saved, resume, save, saving_to
from trainer.engine.run import Run, Since, example
from trainer.engine.same_run import check_ranks
from trainer.engine.step.bad_samples import SkippedSamples
from trainer.engine.step.compiled import compile_step
from trainer.engine.step.nonfinite import NonfiniteGuard
from trainer.engine.trial import first_step, try_task
from trainer.preflight.check import preflight
from trainer.report.events import Report
from trainer.report.listener import listener_of
from trainer.report.metrics import reporting
from trainer.watch.exhaustion import out_of_memory
from trainer.watch.process_start import process_start
from trainer.watch.profile import profiling
from trainer.watch.stacks import dump_stacks_after_timeout
from trainer.watch.stop import Stop, stop_requests
from trainer.watch.throughput import throughput_of
from trainer.watch.watchdog import watching

log = logging.getLogger("trainer")


def run(settings: Settings) -> Exit:
    """Train as the settings say and return the exit code. Every error is reported and re-raised."""
    imported = time.time()
    with (
        dump_stacks_after_timeout(settings),
        nullcontext(tasks.load(settings)) as task,
        join(settings) as runtime,
        reporting(settings, runtime, listener=listener_of(task, settings.task)) as report,
        watching(settings, runtime, report, imported=imported) as watched,
        saving_to(settings, runtime) as saver,
        ExitStack() as ending,
    ):
        try:
            current = _prepare(settings, runtime, report, task, saver)
            ending.callback(current.strategy.close)
            _announce(current)
            try_task(current)
            resume(current)
            name = health.rank(runtime.local_rank)
            sign = health.sign(settings.health, name, limit=settings.health_limit)
            with stop_requests(runtime, sign) as stop:
                watched.current_step, watched.agreements = lambda: current.step, lambda: stop.calls
                return _train(current, stop, done=watched.finish)
        except (Exception, SystemExit) as error:  # a task may call sys.exit()
            memory_fault = out_of_memory(error, settings, runtime)
            fault = memory_fault or as_fault(error)
            report("error", code=int(fault.code), message=str(fault))
            if memory_fault:
                raise memory_fault from error
            raise


def _prepare(
    settings: Settings, runtime: Runtime, report: Report, task: tasks.Task, saver: Saver
) -> Run:
    """Load the data, check the machines, build the model, and wrap it for the mode."""
    check_ranks(settings, task, runtime)
    training = once_per_machine(partial(tasks.data, task, settings, train=True), runtime, task=task)
    test = once_per_machine(partial(tasks.data, task, settings, train=False), runtime, task=task)
    if not (len(training) and len(test)):
        raise Fault(
            Exit.DATA,
            f"task {settings.task}: {len(training)} training and {len(test)} test samples; "
            "both need at least one",
        )
    fitness = preflight(settings, runtime, training)
    seed(settings.seed, runtime.device)
    set_tf32(settings, runtime.device)
    as_made = build.model_of(task, settings)
    two = partial(example, training, settings, 2)
    throughput = throughput_of(as_made, training, read=two, settings=settings, runtime=runtime)
    model = build.build(as_made, settings, runtime, task=task)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    own = own_of(task, settings.task)
    first = partial(example, training, settings, runtime.sizing.batches.micro)
    context = strategies.Context(settings, runtime, task.loss, first, own)
    strategy = strategies.build(runtime.sizing.mode, model, context)
    if settings.compile == "step":
        strategy = replace(strategy, whole_step=compile_step(model, strategy.optimizer, context))
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
        own=own,
        throughput=throughput,
    )


def _announce(run: Run) -> None:
    """Report the launch event: what runs, where and how."""
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
        python=platform.python_version(),
        parameters=run.parameters,
        samples=len(run.training),
        **{name: value for name, value in asdict(sizing.batches).items() if name != "replicas"},
        compiled_step=run.strategy.whole_step is not None,
        **run.strategy.notes,
        precision=run.settings.precision,
        lr=optim.peak_rate(run.settings),
        lr_why=optim.lr_reason(run.settings),
        preflight=run.fitness,
        out=str(run.settings.run_folder),
        host=socket.gethostname(),
        **(code_here() if runtime.is_main else {}),
        began=process_start(),
        settings=_settings(run),
    )


def _settings(run: Run) -> dict[str, str]:
    """Return the variables that repeat the run; secrets in the task's own settings are masked."""
    own = own_settings(type(run.task), run.settings)
    return environment_of(run.settings) | (variables_of(own) if own else {})


def _train(run: Run, stop: Stop, *, done: Callable[[], None]) -> Exit:
    """Take the steps, save and evaluate at the end, call `done`, and report the summary."""
    # What came after the checkpoint comes first: a stop request may have ended the evaluation.
    first = run.unevaluated is not None and run.remaining > 0
    stopped = first and not record(run, evaluate(run, stop))
    began = time.monotonic()
    first_sample = run.samples
    guard = NonfiniteGuard(run)
    with profiling(run.settings, run.runtime, run.report, done=lambda: run.step) as profile_step:
        stopped = stopped or _take_steps(run, guard, stop, profile_step)
        while guard.exhausted:
            guard.go_back()
            stopped = _take_steps(run, guard, stop, profile_step)
    seconds = time.monotonic() - began
    metric = _save_and_evaluate(run, stop, saving=True, evaluating=not stopped, last=True)
    record(run, metric)
    done()
    if metric is None:
        run.report("fault", kind="stopped", signal=stop.name, step=run.step, checkpoint=run.saved)
        if run.runtime.is_main:
            log.info("stopped after step %s; checkpoint %s", run.step, run.saved or "none")
        return Exit.STOPPED
    samples = run.samples - first_sample
    run.report(
        "summary",
        steps=run.step,
        **{run.task.metric: metric},
        samples_per_s=samples / seconds if samples > 0 else None,
        seconds=seconds,
        skipped_steps=guard.skipped,
        checkpoint=run.saved,
        mode=run.runtime.sizing.mode,
        world_size=run.runtime.world_size,
        peak_memory=max(from_all(peak_memory(run.runtime.device), run.runtime, int)),
    )
    return Exit.DONE


def _take_steps(
    run: Run, guard: NonfiniteGuard, stop: Stop, profile_step: Callable[[], None]
) -> bool:
    """Train to the end, or until the guard is exhausted; return True if stopped before."""
    settings, runtime, strategy, order = run.settings, run.runtime, run.strategy, run.order
    steps = run.step + run.remaining
    ledger = Ledger(run)
    shares = training_shares(order, runtime.sizing.batches, runtime.data_rank, start=run.samples)
    batches = run.training_batches(ledger.track(shares))
    since = Since(time.monotonic(), run.samples)
    while run.step < steps:
        report_saved(run)
        # Each rank decides by its own clock; together they agree after which step to save.
        due = 0 < 60 * settings.checkpoint_minutes <= time.monotonic() - run.save_began
        if stop.agreed(save=due, is_step=True):
            guard.settle()
            return True
        profile_step()

        # A layer's random numbers depend only on this seed, so a resumed run draws the same ones.
        seed(mix(settings.seed, run.step, runtime.seed_rank), runtime.device)
        rate = optim.learning_rate(run.step, steps, settings, run.own)
        optim.set_learning_rate(strategy.optimizer, rate, run.options, settings)
        samples = min(run.batch, order.end - run.samples)
        since.weight += (weight := order.weight(run.samples, samples))
        since.data_s -= time.monotonic()
        micro_batches = list(islice(batches, runtime.sizing.batches.accumulation))
        since.data_s += time.monotonic()
        with first_step(run):
            loss_sum, norm, weight = _train_on(run, guard, micro_batches, weight)
        epoch = run.samples // order.length
        run.step, run.samples = run.step + 1, run.samples + samples
        ledger.write_step(run.step)

        # After the step: compare replicas, report, save, evaluate.
        last = run.step == steps
        saving = run.is_every(settings.checkpoint_steps) or stop.save
        evaluating = run.evaluation_is_due
        reporting = last or saving or run.step == 1 or run.is_every(settings.log_steps)
        if reporting or evaluating:
            guard.settle()
        if run.is_every(settings.fingerprint_steps):
            compare(run)
        if reporting:
            loss = total([float(loss_sum)], runtime)[0] / weight
            since = since.report(run, steps=steps, epoch=epoch, loss=loss, norm=norm, rate=rate)
        if last or guard.exhausted:
            break
        pause = time.monotonic()
        best = evaluating and bool(settings.checkpoint_keep_best)  # then there must be a checkpoint
        saving = (saving or best) and not guard.in_a_row
        metric = _save_and_evaluate(run, stop, saving=saving, evaluating=evaluating)
        if evaluating and metric is None:
            return True
        since.began += time.monotonic() - pause  # this time is not training
    return False


def _train_on(
    run: Run, guard: NonfiniteGuard, micro_batches: Sequence[Batch], weight: float
) -> tuple[Tensor, Tensor, float]:
    """Forward, backward, clip, guard, update: compiled as one call, or one after another.

    Returns this rank's sum of losses, the gradient's norm, and the part of `weight` that was read.
    """
    strategy = run.strategy
    skipped = SkippedSamples(run, micro_batches)
    if strategy.whole_step is not None:
        run.wait_for_copy()  # the optimiser, whose update would wait, is not called
        weight = skipped.left_of(weight)
        loss_sum, norm = strategy.whole_step(micro_batches, weight)
        updated = guard.accepts(norm)
    else:
        loss_sum = strategy.step(micro_batches, weight / run.loss_scale.value)
        weight = skipped.rescale_gradients(weight)
        run.loss_scale.unscale(strategy.module.parameters())
        norm = strategy.clip(run.settings.clip_norm)
        if updated := guard.accepts(norm):
            run.update()
        strategy.optimizer.zero_grad()
    if updated and run.average:
        run.average.update()
    return loss_sum, norm, weight


def _save_and_evaluate(
    run: Run, stop: Stop, *, saving: bool, evaluating: bool, last: bool = False
) -> float | None:
    """Save and evaluate if asked to; return the metric, None without one or if stopped.

    The checkpoint comes before the evaluation, because that takes long. It comes after it if the metric
    decides which checkpoints are kept.
    """
    metric = None
    if evaluating and run.settings.checkpoint_keep_best:
        metric = evaluate(run, stop)
        if metric is None and not last:
            return None
    if saving:
        save(run, metric=metric, last=last)
    if evaluating and not run.settings.checkpoint_keep_best:
        metric = evaluate(run, stop)
    return metric
