"""Check that all ranks have the same settings, and that the same settings wrote a checkpoint.

check_ranks(settings, task, runtime)
check(run, found, forced=False)      # before the checkpoint is loaded; more steps are allowed
"""

import ast
import logging
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

from trainer.checkpoint.find import Found
from trainer.config.environment import OWN, variable
from trainer.config.exits import Exit, Fault
from trainer.config.identity import MAY_DIFFER_BY_NODE, differences, identity
from trainer.config.own_settings import own_settings, values_of
from trainer.config.settings import Settings
from trainer.distributed.messages import from_all, from_main
from trainer.distributed.runtime import Runtime
from trainer.engine.run import Run
from trainer.tasks import Task

log = logging.getLogger("trainer")

_WAYS_OUT = (
    "to train from the start: another TRAINER_OUT, TRAINER_RESUME=never, or make run FRESH=1; to resume "
    "from it anyway: TRAINER_RESUME=force"
)
_NAMES = {"code": "the task's code", "samples": "training samples"}


def identity_of(run: Run) -> dict[str, Any]:
    """Return what decides the run's result: settings, your own task's code, and the size of the data."""
    more = {"samples": len(run.training)} | _of_task(run.task, run.settings)
    return identity(run.settings) | more


def check_ranks(settings: Settings, task: Task, runtime: Runtime) -> None:
    """Compare settings and the task's code of each rank with rank 0's, all ranks together.

    A rank with others would learn something else, or wait for what no other rank does. Raises
    Fault(64).
    """
    shared = Settings.model_fields.keys() - MAY_DIFFER_BY_NODE
    mine = settings.model_dump(mode="json", include=shared) | _of_task(task, settings)
    first = from_main(mine, runtime, dict[str, Any])
    changed = "; ".join(
        f"{_NAMES.get(name) or variable(name)} {now!r}, rank 0 has {then!r}"
        for name, (then, now) in differences(saved=first, now=mine).items()
    )
    for rank, found in enumerate(from_all(changed, runtime, str)):
        if found:
            raise Fault(
                Exit.CONFIG, f"rank {rank}: {found}; all nodes need the same settings and code"
            )


def check(run: Run, found: Found, *, forced: bool) -> None:
    """Compare the run, before its first step, with the one that saved a checkpoint.

    Logs once what is new: more steps, or with `forced` other settings. Raises Fault(64) if the run that
    wrote the checkpoint had other settings, or more steps to take than this one.
    """
    progress = found.manifest.progress
    saved = progress.identity or {
        "task": progress.task,
        "seed": progress.seed,
        "global_batch": progress.global_batch,
    }
    changed = [
        f"{_NAMES.get(name) or variable(name)} {now!r}, was {then!r}"
        for name, (then, now) in differences(saved=saved, now=run.identity).items()
    ]
    asked = run.steps_from(progress.step, progress.samples)
    before = progress.steps or progress.step
    if asked < before:
        changed.append(f"steps {asked}, was {before}")
    if changed and not forced:
        raise Fault(
            Exit.CONFIG,
            f"checkpoint {found.where} is of a run with other settings: {'; '.join(changed)}; "
            f"{_WAYS_OUT}",
        )
    if not run.runtime.is_main:
        return
    if changed:
        log.warning("TRAINER_RESUME=force: goes on with other settings: %s", "; ".join(changed))
    elif asked > before and progress.step:
        log.info(
            "a run of %s steps goes on to %s; the learning rate follows %s", before, asked, asked
        )
    if not progress.identity:
        log.warning(
            "checkpoint %s does not say which settings made it: an older muster wrote it",
            found.where,
        )


def _of_task(task: Task, settings: Settings) -> dict[str, Any]:
    """Return the task's own settings that decide, and a hash of its code."""
    found: dict[str, Any] = {"code": _hash_of_code(settings.task)}
    if own := own_settings(type(task), settings):
        free = set(getattr(own, "DO_NOT_DECIDE", ()))
        found |= {OWN + name: value for name, value in values_of(own).items() if name not in free}
    return found


def _hash_of_code(task: str) -> str:
    """Return a hash of your own task's file, without comments; "" for a built-in task."""
    name, colon, _ = task.partition(":")
    file = getattr(sys.modules.get(name), "__file__", None)
    if not colon or file is None:
        return ""
    code = ast.unparse(ast.parse(Path(file).read_bytes()))
    return blake2b(code.encode(), digest_size=8).hexdigest()
