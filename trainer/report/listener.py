"""Pass the run's events to `on_event` of a user's task, for example for a tracker.

    def on_event(self, event):      # on rank 0
        if event["event"] == "step":
            tracker.log({"loss": event["loss"]}, step=event["step"])

with reporting(settings, runtime, listener=listener_of(task, settings.task)) as report: ...
"""

import logging
from collections.abc import Callable

from trainer.config.exits import Fault
from trainer.data.task_contract import blamed_on
from trainer.report.events import Event

log = logging.getLogger("trainer")

_TOLD = ("launch", "step", "eval", "sample", "checkpoint", "summary")


def listener_of(task: object, name: str) -> Callable[[Event], None] | None:
    """Return a function that gives the task each event; None if the task has no `on_event`.

    An error at the launch event, before any step, is raised as a Fault(64). Later ones cause a warning,
    because an unreachable tracker should not end a run of days.
    """
    hook = getattr(task, "on_event", None)
    if hook is None:
        return None
    warned = False

    def listen(event: Event) -> None:
        nonlocal warned
        if event["event"] not in _TOLD:
            return
        try:
            with blamed_on(name, "on_event()"):
                hook(dict(event))
        except Fault as fault:
            if event["event"] == "launch":
                raise
            if not warned:
                log.warning("%s; the run goes on; this is reported once", fault)
            warned = True

    return listen
