"""What the model makes by itself after an evaluation, such as text: the `sample` event.

    def sample(self, forward):          # of a task; every rank calls it, with the same inputs
        return {"text": ...}            # made by calls of forward(inputs)

try_sample(run)
report_sample(run, stop)
"""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import torch

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Nested
from trainer.data.task_contract import blamed_on, kind_of
from trainer.distributed.tensors import map_tensors
from trainer.engine.run import Run
from trainer.watch.stop import Stop

log = logging.getLogger("trainer")

_OF_THE_EVENT = {"event", "time", "step", "seconds"}


# No Exceptions, so that a task's own code does not hold them back.
class _LeftOut(BaseException):
    """A sample is wanted where not every rank has the model's outputs."""


class _Stopped(BaseException):
    """A stop request came."""


def try_sample(run: Run) -> None:
    """Make a sample before the first step, so that a wrong one costs nothing.

    Says when samples are left out: of a pipeline only the last stage has outputs. Raises Fault(64).
    """
    try:
        sample_of(run.task, run.settings.task, _forward(run, lambda: _has_stages(run), _LeftOut))
    except _LeftOut:
        if run.runtime.is_main:
            log.info("no sample is made: on a mesh with pp only the last stage has the outputs")


def report_sample(run: Run, stop: Stop) -> bool:
    """Report what the task makes, if anything; return False when a stop request came meanwhile."""
    if _has_stages(run):
        return True
    began = time.monotonic()
    try:
        made = sample_of(run.task, run.settings.task, _forward(run, stop.agreed, _Stopped))
    except _Stopped:
        return False
    if made:
        run.report("sample", step=run.step, **made, seconds=time.monotonic() - began)
    return True


@torch.no_grad()
def sample_of(task: Any, name: str, forward: Callable[[Nested], Any]) -> dict[str, Any]:
    """Return the fields of a task's sample; nothing of a task that makes none.

    Raises Fault(64) when `sample` raises, or returns what no event holds.
    """
    if not hasattr(task, "sample"):
        return {}
    with blamed_on(name, "sample()"):
        made = task.sample(forward)
    if made is None:
        return {}
    if not isinstance(made, dict) or not all(isinstance(key, str) for key in made):
        what = f"a {kind_of(made)}; wanted: a dict of texts, numbers and lists by name, or None"
    elif taken := sorted(_OF_THE_EVENT & made.keys()):
        what = f"a {taken[0]!r}, which the sample event has already"
    else:
        try:
            json.dumps(made)
        except (TypeError, ValueError) as error:
            what = f"what no JSON holds: {error}"
        else:
            return made
    raise Fault(Exit.CONFIG, f"task {name}: sample() returned {what}")


def _forward(
    run: Run, ends: Callable[[], bool], ending: type[BaseException]
) -> Callable[[Nested], Any]:
    """Return the forward pass of inputs on the CPU, with outputs there; it raises once `ends()`."""

    def forward(inputs: Nested) -> Any:
        if ends():
            raise ending
        moved = map_tensors(lambda tensor: tensor.to(run.runtime.device), inputs)
        return map_tensors(lambda tensor: tensor.cpu(), run.strategy.forward(moved))

    return forward


def _has_stages(run: Run) -> bool:
    return run.runtime.sizing.mesh.get("pp", 1) > 1
