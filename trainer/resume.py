"""How a run is saved and gone on with: its progress, beside the checkpoint's weights."""

import time

from trainer import checkpoint
from trainer.exits import Exit, Fault
from trainer.run import Run
from trainer.runtime import say


def resume(run: Run) -> None:
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


def roll_back(run: Run, *, before: int) -> bool:
    """Go back to the newest complete checkpoint of less than `before` steps; False if there is none."""
    folder = run.settings.run_folder / "checkpoints"
    path = checkpoint.newest(folder, before=before, runtime=run.runtime)
    if path is None:
        return False
    progress = checkpoint.load(path, run.strategy.module, run.saved_optimizer, runtime=run.runtime)
    run.step, run.samples = progress.step, progress.samples
    run.saved, run.saved_step = str(path), progress.step
    return True


def save(run: Run) -> None:
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
