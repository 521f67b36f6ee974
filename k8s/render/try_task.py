"""Try a job's task on two samples with `python -m trainer.check`, if torch is installed.

render.py k8s/jobs/08-own-task.yaml --check
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from k8s.base.errors import config_error
from k8s.plan.launcher import RunsIn
from k8s.plan.model import Plan
from k8s.render.manifests import Rendered
from trainer.config.exits import Exit, Fault
from trainer.plan import own_process

_SECONDS = 60
_MISSING = "no module named"  # a module of the image or of a repository may be missing here

_tried: dict[tuple[object, ...], str] = {}  # results of this process


def try_task(rendered: Sequence[Rendered]) -> str:
    """Return the result as text to append to an ok. Raises Fault(64) if the task is wrong.

    The text is empty for a job of one machine: the run itself tries the task before its first step.
    """
    plans = [one.plan for one in rendered if one.launcher.runs_in is RunsIn.POD]
    if not plans or plans[0].program:
        return ""
    task = plans[0].settings.task
    reason = _reason(plans[0])
    return f"; task {task} " + (f"not tried: {reason}" if reason else "tried on two samples")


def _reason(plan: Plan) -> str:
    """Return why the task was not tried to the end, or an empty text if it was."""
    data = plan.storage.data or plan.settings.data
    if data and not Path(data).exists():
        return f"its data, {data}, is not on this machine"
    if find_spec("torch") is None:
        return "torch is not installed here"
    settings = plan.settings
    # What the model depends on. Most jobs of a matrix differ in other settings, so they try it once.
    model = (settings.model, settings.precision, str(settings.own), data)
    made_of = (plan.payload.folder, settings.task, *model)
    if made_of not in _tried:
        _tried[made_of] = _try(plan)
    return _tried[made_of]


def _try(plan: Plan) -> str:
    task, label = plan.settings.task, f"trainer.task={plan.settings.task!r}"
    data = {"TRAINER_DATA": plan.storage.data} if plan.storage.data else {}
    try:
        done = own_process.run(
            "trainer.check",
            task,
            settings=plan.settings,
            seconds=_SECONDS,
            what="the check",
            environment={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **data},
            folder=plan.payload.folder or None,
        )
    except Fault as fault:
        return str(fault)
    if done.returncode == Exit.DONE:
        return ""
    last = next(filter(str.strip, reversed(done.stderr.splitlines())), "no message").strip()
    said = last.removeprefix("check: ").removesuffix(f" (exit {done.returncode})")
    if done.returncode == Exit.CONFIG and _MISSING not in said.lower():
        raise config_error(f"{label}: {said.removeprefix(f'task {task}: ')}")
    return said.removeprefix(f"TRAINER_TASK={task!r}: ")
