"""Save a run, and resume it: the weights, and its progress in steps and samples."""

import logging
import time
from dataclasses import replace

import torch
from torch import Tensor

from trainer.checkpoint.find import Found, find, is_shared, newest, set_aside
from trainer.checkpoint.manifest import Progress
from trainer.checkpoint.read import load
from trainer.checkpoint.retention import Keep
from trainer.checkpoint.saver import Saved, Saver
from trainer.checkpoint.state import capture
from trainer.checkpoint.store import absolute, store_at
from trainer.checkpoint.write import Label, add_metric
from trainer.config.exits import Exit, Fault
from trainer.config.identity import differences
from trainer.config.settings import Settings
from trainer.data.stream import Stream
from trainer.distributed import optim
from trainer.distributed.runtime import Runtime
from trainer.distributed.tensors import local_part
from trainer.engine.run import Run
from trainer.engine.same_run import check, identity_of
from trainer.watch import peer_losses

log = logging.getLogger("trainer")


def saving_to(settings: Settings, runtime: Runtime) -> Saver:
    """Return a saver for the folder or bucket that the settings name; use it as a context."""
    return Saver(
        store_at(settings.checkpoints or settings.run_folder / "checkpoints"),
        Keep(
            settings.checkpoint_keep,
            settings.checkpoint_keep_every,
            settings.checkpoint_keep_best,
            settings.resume.removeprefix("force:").rstrip("/"),
        ),
        runtime=runtime,
        timeout=settings.checkpoint_timeout,
    )


def resume(run: Run) -> None:
    """Load the checkpoint that TRAINER_RESUME asks for, if there is one.

    Raises Fault(64) if a run with other settings wrote it.
    """
    run.identity = identity_of(run)
    run.frozen = _frozen_samples(run)
    if run.saver is None:
        return
    stream = run.training if isinstance(run.training, Stream) else None
    if stream is not None and stream.has_state:
        run.extra["stream"] = run.training_batches
    run.saver.watch(run.saved_optimizer)
    asked = run.settings.resume
    first, _, rest = asked.partition(":")
    if forced := first == "force":
        asked = rest or "auto"
    store = run.saver.store
    if not is_shared(store, runtime=run.runtime):
        run.saver = None
        if run.runtime.is_main:
            log.warning(
                "checkpoints %s is not the same folder on all nodes: none will be written, and a "
                "restart repeats every step; mount a shared volume as TRAINER_OUT",
                store.where(""),
            )
        if asked in ("auto", "never"):
            return
    found = find(asked, store, runtime=run.runtime)
    if found is not None:
        check(run, found, forced=forced)
        _load(run, found)
        if asked != "auto" and run.saver is not None:  # the checkpoint may be an early one
            set_aside(store, after=found.manifest.progress.step, runtime=run.runtime)
        if found.manifest.metric is None and (run.evaluation_is_due or not run.remaining):
            run.unevaluated = found
        _report_resumed(run, stream)


def _report_resumed(run: Run, stream: Stream | None) -> None:
    run.report("checkpoint", action="resumed", step=run.step, path=run.saved)
    if run.runtime.is_main:
        log.info("resumed from %s: %s steps done, %s to go", run.saved, run.step, run.remaining)
        if stream is not None and not stream.has_state and (used := run.samples % len(stream)):
            log.info("the data has no state_dict(): %s samples are read again and dropped", used)


def roll_back(run: Run, *, before: int) -> bool:
    """Go back to the newest complete checkpoint before step `before`; False if there is none.

    All ranks call it together. The caller drops the batches that it has fetched for later steps.
    """
    if run.saver is None:
        return False
    _report(run, run.saver.wait())
    found = newest(run.saver.store, before=before, runtime=run.runtime)
    if found is not None:
        _load(run, found)
    return found is not None


def _load(run: Run, found: Found) -> None:
    progress = found.manifest.progress
    # If the optimiser has changed (only with TRAINER_RESUME=force), its saved state cannot be used.
    decided = ("optimizer",) if run.own.optimizer is None else ("optimizer", "code")
    changed = differences(saved=progress.identity, now=run.identity)
    lacking = load(
        found,
        run.strategy.module,
        run.saved_optimizer,
        run.extra,
        runtime=run.runtime,
        optimizer_state=changed.keys().isdisjoint(decided),
        other_settings=bool(changed),
    )
    if run.average and "ema" in lacking:  # it was made of the initial weights
        run.average.start()
    if run.own.optimizer is None:
        optim.set_options(run.saved_optimizer, run.options)
    elif run.saved_optimizer is not run.strategy.optimizer:
        # A task's own optimiser may keep state in its options, which ddp-zero1 has twice.
        optim.set_options(run.strategy.optimizer, optim.options_of(run.saved_optimizer))
    run.frozen = _frozen_samples(run)
    run.step, run.samples = progress.step, progress.samples
    run.saved, run.saved_step = found.where, progress.step


def save(run: Run, *, metric: float | None = None, last: bool = False) -> None:
    """Start to save the run; all ranks call it together, and none waits for the disk.

    If a save fails, there is only a warning, because the next save will follow. With `last` there is no
    next one: it waits, and raises Fault(71) if the save fails. A retry on another machine then resumes
    from the checkpoint before.
    """
    if run.saver is None:
        return
    began = time.monotonic()
    _report(run, run.saver.wait())
    if run.step > run.saved_step:
        progress = Progress(
            step=run.step,
            samples=run.samples,
            task=run.settings.task,
            seed=run.settings.seed,
            global_batch=run.batch,
            steps=run.step + run.remaining,
            identity=run.identity,
        )
        run.synchronize()
        sizing = run.runtime.sizing
        label = Label(progress, sizing.mode, sizing.world_size, metric)
        run.saver.begin(
            capture(run.strategy.module, run.saved_optimizer, run.extra), label, since=began
        )
        if not all(map(torch.equal, run.frozen, _frozen_samples(run))):
            # A forward pass changes weights, as of a teacher that follows the model: the next one must
            # wait for the copy. What the optimiser changes, its update waits for.
            run.wait_for_copy()
        run.save_began = began
    if last:
        saved = run.saver.wait()
        _report(run, saved and replace(saved, blocked_s=time.monotonic() - began))
        if saved and saved.refusal:
            raise Fault(
                Exit.MACHINE, f"{saved.refusal}; the newest complete one is {run.saved or 'none'}"
            )


def record(run: Run, metric: float | None) -> bool:
    """Write the metric of `run.unevaluated` into that checkpoint; return False if there is none.

    The checkpoint of another run is not changed.
    """
    found = run.unevaluated
    if metric is None or found is None or run.saver is None:
        return metric is not None
    own = absolute(run.saver.store.where(found.name))
    if run.runtime.is_main and absolute(found.where) == own:
        try:
            add_metric(found, metric)
        except OSError as error:
            log.warning("checkpoint %s: its metric is not recorded: %s", found.where, error)
    run.unevaluated = None
    return True


def _frozen_samples(run: Run) -> list[Tensor]:
    """Return a few numbers of each weight that the optimiser does not change."""
    samples = []
    for parameter in run.strategy.module.parameters():
        part = local_part(parameter.detach())
        if not parameter.requires_grad and part.numel():
            while part.dim() > 1:
                part = part[0]
            samples.append(part[:8].clone() if part.dim() else part.clone())
    return samples


def report_saved(run: Run) -> None:
    """Report the save that has ended since the last call, if there is one."""
    if run.saver is not None:
        _report(run, run.saver.ended())


def _report(run: Run, saved: Saved | None) -> None:
    if saved is None:
        return
    place = {"step": saved.step, "path": saved.where}
    if saved.refusal is None:
        run.saved, run.saved_step = saved.where, saved.step
        if run.runtime.local_rank == 0:
            peer_losses.forget(run.settings.run_folder)
        took = {"blocked_s": saved.blocked_s, "seconds": saved.seconds, "bytes": saved.bytes}
        run.report("checkpoint", action="saved", **place, **took)
        return
    run.report("checkpoint", action="refused", **place, message=str(saved.refusal))
    if run.runtime.is_main:
        log.warning(
            "%s; going on, the newest complete one is %s", saved.refusal, run.saved or "none"
        )
