"""What a run reports: events, one JSON object a line, to `metrics.jsonl` and to who is watching.

Only the main rank reports. Off a terminal the lines go to standard output as well; on one a progress
bar shows them. Human words go to standard error. Who asks for it has figures served to Prometheus, on
every node, and curves written for TensorBoard.
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

log = logging.getLogger("trainer")

_Sink = Callable[[Event], None]


@contextlib.contextmanager
def reporting(settings: Settings, runtime: Runtime) -> Iterator[Report]:
    """Open what events go to and yield `report(event, **fields)`; on most ranks it does nothing.

    The summary is the last event, but for an error.
    """
    with contextlib.ExitStack() as stack:
        sinks = [stack.enter_context(sink) for sink in _sinks(settings, runtime)]
        one_at_a_time = threading.Lock()  # the watch reports from its own thread
        summed_up = False

        def report(event: str, **fields: Any) -> None:
            nonlocal summed_up
            record = {"event": event, "time": time.time(), **fields}
            with one_at_a_time:
                if summed_up and event != "error":
                    return  # the watch, which ends a little later
                summed_up = summed_up or event == "summary"
                for sink in sinks:
                    sink(record)

        yield report


# What only some runs ask for is imported for them alone.
def _sinks(
    settings: Settings, runtime: Runtime
) -> Iterator[contextlib.AbstractContextManager[_Sink]]:
    """Yield what this rank's events go to."""
    if settings.metrics_port and runtime.local_rank == 0:
        from trainer.report.prometheus import serving  # noqa: PLC0415

        yield serving(settings.metrics_port)
    if not runtime.is_main:
        return
    yield to_file(settings.run_folder / "metrics.jsonl")
    if settings.tensorboard:
        from trainer.report.tensorboard import writing  # noqa: PLC0415

        yield writing(settings.run_folder / "tensorboard")
    if settings.log == "rich" or (settings.log == "auto" and sys.stdout.isatty()):
        from trainer.report.terminal import display  # noqa: PLC0415

        yield display()
    else:
        yield contextlib.nullcontext(_to_stdout)


@contextlib.contextmanager
def to_file(path: Path) -> Iterator[_Sink]:
    """Append events to `path`. Raises Fault(71) when it cannot be opened; a full disk costs lines."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError as error:
        raise Fault(
            Exit.MACHINE, f"{path}: {error.strerror}; set a TRAINER_OUT that can be written"
        ) from error
    torn = told = False

    def write(event: Event) -> None:
        nonlocal torn, told
        line = f"{chr(10) * torn}{_line(event)}\n".encode()
        try:
            torn = os.write(file, line) < len(line)
        except OSError as error:
            if not told:
                log.warning("%s: %s; events are missing there", path, error.strerror)
            told = True

    try:
        yield write
    finally:
        os.close(file)


def _to_stdout(event: Event) -> None:
    print(_line(event), flush=True)


def _line(event: Event) -> str:
    """Return the event as JSON, which has no word for nan: such a number becomes null."""
    finite = {k: None if _is_no_number(value) else value for k, value in event.items()}
    return json.dumps(finite, allow_nan=False)


def _is_no_number(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
