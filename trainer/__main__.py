"""One rank of a training run, or the whole run when there is only one.

python -m trainer                               # one process
torchrun --nproc-per-node 2 -m trainer          # two ranks
python -m trainer --help                        # every setting, and those of the task in TRAINER_TASK
"""

import contextlib
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from trainer.config.ending import exit_process, report_fault
from trainer.config.environment import OWN, from_environment, variable
from trainer.config.exits import MEANINGS, PROFILE_SIGNAL, Exit, Fault
from trainer.config.log import log_to_stderr
from trainer.config.own_settings import BUILT_IN
from trainer.config.settings import Settings
from trainer.imports import without_collection
from trainer.launcher.orphans import die_with_launcher

_HELP = """usage: python -m trainer

Trains a model with the settings in the environment variables below. If none is set, it trains the
digits task in this process; under torchrun or trainer.launch it is one rank of many.

settings:
{settings}
{own}
exit codes:
{codes}
"""


def main() -> int:
    """Run and return the exit code."""
    if len(sys.argv) > 1:
        if sys.argv[1] not in ("-h", "--help"):
            text = f"takes no arguments, got {sys.argv[1]}; see python -m trainer --help"
            return report_fault(Fault(Exit.CONFIG, text), None)
        try:
            print(_help_text(), flush=True)
        except BrokenPipeError:  # `| head`; Python would fail again at the final flush
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    return train(is_forked=False)


def train(*, is_forked: bool) -> int:
    """Train as the environment says; return the exit code. `is_forked`: by the fork server."""
    log_to_stderr()
    signal.signal(PROFILE_SIGNAL, signal.SIG_IGN)  # until there are steps to profile
    try:
        if not is_forked:
            die_with_launcher()
        settings = from_environment()
        # torch takes seconds to import; a wrong setting is reported before that.
        if settings.dry_run is not None:
            with without_collection():
                from trainer.tools import dry_run  # noqa: PLC0415
            return dry_run.run(settings, settings.dry_run)
        with without_collection():
            from trainer.engine.loop import run  # noqa: PLC0415
        return run(settings)
    except Fault as fault:
        return report_fault(fault, None)
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001  # the code says what it was
        from trainer.distributed.runtime import as_fault  # noqa: PLC0415

        return report_fault(as_fault(error), error)


def _help_text() -> str:
    width = max(len(variable(name)) for name in Settings.model_fields)
    settings = "\n".join(
        f"  {variable(name):{width}}  {field.description} "
        f"[{'unset' if field.default in (None, '') else field.default}]"
        for name, field in Settings.model_fields.items()
    )
    codes = "\n".join(f"  {code:3d}  {meaning.text}" for code, meaning in MEANINGS.items())
    return _HELP.format(settings=settings, own=_own_help(), codes=codes)


def _own_help() -> str:
    """Return the own settings of the task in TRAINER_TASK, a line each."""
    task = os.environ.get(variable("task"), "")
    kind: Any = BUILT_IN.get(task)
    if ":" in task:
        module, _, name = task.partition(":")
        with contextlib.suppress(Exception, SystemExit):  # a run will report it
            sys.path.insert(0, str(Path.cwd()))
            kind = getattr(getattr(import_module(module), name), "Settings", None)
    lines = []
    for name, field in getattr(kind, "model_fields", {}).items():
        default = "required" if field.is_required() else field.default
        default = "computed" if field.default_factory else default
        lines.append(f"  {variable(OWN + name)}  {field.description or ''} [{default}]")
    return "\n".join(["", f"settings of task {task}:", *lines, ""]) if lines else ""


if __name__ == "__main__":
    exit_process(main())
