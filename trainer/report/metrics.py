"""Send a run's events to `metrics.jsonl`, one JSON object a line, and where the settings ask for.

Only rank 0 reports. A terminal shows the events as a progress bar; otherwise stdout has them as JSON
lines. Messages for people go to stderr. TRAINER_METRICS_PORT serves metrics to Prometheus on every
node, TRAINER_TENSORBOARD writes curves, TRAINER_TRACKER sends them to an experiment tracker.

    with reporting(settings, runtime) as report: report("step", step=1, loss=2.3)
"""

import contextlib
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.distributed.runtime import Runtime
from trainer.report.events import Event, Report
from trainer.report.goodput import Account
from trainer.report.history import events, of_main

log = logging.getLogger("trainer")

_Sink = Callable[[Event], None]


@contextlib.contextmanager
def reporting(
    settings: Settings, runtime: Runtime, *, listener: _Sink | None = None
) -> Iterator[Report]:
    """Yield `report(event, **fields)`, which does nothing on most ranks.

    `listener` gets the events of rank 0 last. After the summary only an error is reported.
    """
    with contextlib.ExitStack() as stack:
        sinks = [stack.enter_context(sink) for sink in _sinks(settings, runtime)]
        sinks += [listener] if listener and runtime.is_main else []
        lock = threading.Lock()  # the watchdog reports from its own thread
        account = _account_so_far(settings.run_folder) if sinks else Account()
        has_summary = False

        def report(event: str, **fields: Any) -> None:
            nonlocal has_summary
            record = {"event": event, "time": time.time(), **fields}
            with lock:
                if has_summary and event != "error":
                    return  # the watchdog ends a little later
                has_summary = has_summary or event == "summary"
                account.take(record)
                if event == "launch":
                    record["attempt"] = account.launches
                if event in ("step", "summary"):
                    record |= {"goodput": account.goodput, "wall_s": account.wall}
                if event == "summary":
                    record["spent_s"] = account.by_cause()
                for sink in sinks:
                    sink(record)

        yield report


def _account_so_far(folder: Path) -> Account:
    """Return the wall time of the run's former attempts, and of this one's start."""
    account = Account()
    with contextlib.suppress(OSError):
        for event in of_main(list(events(folder))):
            account.take(event)
    return account


# Imported inside: only some runs need it.
def _sinks(
    settings: Settings, runtime: Runtime
) -> Iterator[contextlib.AbstractContextManager[_Sink]]:
    """Yield the destinations of this rank's events."""
    if settings.metrics_port and runtime.local_rank == 0:
        from trainer.report.prometheus import serving  # noqa: PLC0415

        yield serving(settings.metrics_port, settings.run_folder)
    if not runtime.is_main:
        return
    yield to_file(settings.run_folder / "metrics.jsonl")
    if settings.tensorboard:
        from trainer.report.tensorboard import writing  # noqa: PLC0415

        yield writing(settings.run_folder / "tensorboard")
    if settings.tracker != "none":
        from trainer.report.trackers.process import tracked  # noqa: PLC0415

        yield tracked(settings)
    if settings.log == "rich" or (settings.log == "auto" and sys.stdout.isatty()):
        from trainer.report.terminal import Display  # noqa: PLC0415

        yield contextlib.closing(Display())
    else:
        yield contextlib.nullcontext(lambda event: print(_line(event), flush=True))


@contextlib.contextmanager
def to_file(path: Path) -> Iterator[_Sink]:
    """Append events to `path`. Raises Fault(71) if it cannot be opened; a full disk loses lines."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError as error:
        raise Fault(
            Exit.MACHINE, f"{path}: {error.strerror}; set a TRAINER_OUT that can be written"
        ) from error
    torn = warned = False

    def write(event: Event) -> None:
        nonlocal torn, warned
        line = f"{chr(10) * torn}{_line(event)}\n".encode()
        try:
            torn = os.write(file, line) < len(line)
        except OSError as error:
            if not warned:
                log.warning("%s: %s; events are missing there", path, error.strerror)
            warned = True

    try:
        yield write
    finally:
        os.close(file)


def _line(event: Event) -> str:
    """Return the event as JSON. It has no NaN and no infinity: they become null."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in event.items()
    }
    return json.dumps(finite, allow_nan=False)
