"""Send a run's events to `metrics.jsonl`, one JSON object per line, and to what the settings name.

Only rank 0 reports. A terminal shows the events as a progress bar; otherwise stdout has them as JSON
lines. Messages for people go to stderr. TRAINER_METRICS_PORT serves metrics to Prometheus on every
node, TRAINER_TENSORBOARD writes curves, TRAINER_TRACKER sends them to an experiment tracker.

    with reporting(settings, runtime) as report: report("step", step=1, loss=2.3)
"""

import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from trainer.config.settings import Settings
from trainer.distributed.runtime import Runtime
from trainer.report.events import Event, Report
from trainer.report.live.record import Record, as_line, to_file

log = logging.getLogger("trainer")

_Sink = Callable[[Event], None]
# What is still reported after these: the watchdog's thread ends a little later, and may know the cause.
_AFTER = {"summary": ("error",), "error": ("error", "fault")}


@contextlib.contextmanager
def reporting(
    settings: Settings, runtime: Runtime, *, listener: _Sink | None = None
) -> Iterator[Report]:
    """Yield `report(event, **fields)`, which does nothing on most ranks.

    `listener` gets rank 0's events after all other destinations. After the summary only an error is
    reported, after an error only its cause.
    """
    with contextlib.ExitStack() as stack:
        sinks = [stack.enter_context(sink) for sink in _sinks(settings, runtime)]
        sinks += [listener] if listener and runtime.is_main else []
        lock = threading.Lock()  # the watchdog reports from its own thread
        so_far = Record(settings.run_folder if sinks else None)
        wanted: tuple[str, ...] | None = None  # all

        def report(event: str, **fields: Any) -> None:
            nonlocal wanted
            kept = {
                name: _finite(one) if isinstance(one, dict | list | tuple) else one
                for name, one in fields.items()
            }
            record = {"event": event, "time": time.time(), **kept}
            with lock:
                if wanted is not None and event not in wanted:
                    return
                wanted = _AFTER.get(event, wanted)
                record = so_far.complete(record)
                for sink in sinks:
                    sink(record)

        yield report


def _finite(value: Any) -> Any:
    """Return a list or dict with None for NaN and infinity, which JSON lacks and a sample may hold."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Imports are inside because only some runs need them.
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
    yield shown(settings)


def shown(settings: Settings) -> contextlib.AbstractContextManager[_Sink]:
    """Return what shows events on standard output."""
    if settings.log == "rich" or (settings.log == "auto" and sys.stdout.isatty()):
        from trainer.report.terminal import Display  # noqa: PLC0415

        return contextlib.closing(Display())
    return contextlib.nullcontext(_print)


def _print(event: Event) -> None:
    """Print an event; if nobody reads it (`| head`) or the disk is full, no later one is printed."""
    try:
        print(as_line(event), flush=True)
    except OSError as error:
        log.warning("standard output: %s; events are missing there", error.strerror)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
