"""What a run reports: events, one JSON object a line, to `metrics.jsonl` and to who is watching.

Only the main rank reports. Off a terminal the lines go to standard output as well; on one a progress
bar shows them. Human words go to standard error.
"""

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from trainer.exits import Exit, Fault
from trainer.runtime import Runtime
from trainer.settings import Settings

Event = dict[str, Any]
Report = Callable[..., None]


@contextlib.contextmanager
def reporting(settings: Settings, runtime: Runtime) -> Iterator[Report]:
    """Open what events go to and yield `report(event, **fields)`; on other ranks it does nothing."""
    if not runtime.is_main:
        yield lambda _event, **_fields: None
        return
    with contextlib.ExitStack() as stack:
        path = settings.run_folder / "metrics.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("a"))
        except OSError as error:
            raise Fault(
                Exit.MACHINE, f"{path}: {error.strerror}; set a TRAINER_OUT that can be written"
            ) from error

        def to_file(event: Event) -> None:
            print(_line(event), file=file, flush=True)

        if settings.log == "rich" or (settings.log == "auto" and sys.stdout.isatty()):
            from trainer.progress import display  # noqa: PLC0415  # rich is needed on a terminal only

            show: Callable[[Event], None] = stack.enter_context(display())
        else:
            show = _to_stdout

        one_at_a_time = threading.Lock()  # the watch reports from its own thread

        def report(event: str, **fields: Any) -> None:
            record = {"event": event, "time": time.time(), **fields}
            with one_at_a_time:
                to_file(record)
                show(record)

        yield report


def _to_stdout(event: Event) -> None:
    print(_line(event), flush=True)


def _line(event: Event) -> str:
    """Return the event as JSON, which has no word for nan: such a number becomes null."""
    finite = {k: None if _is_no_number(value) else value for k, value in event.items()}
    return json.dumps(finite, allow_nan=False)


def _is_no_number(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
