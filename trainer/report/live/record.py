"""Adds attempt, goodput and wall time to a run's events, and appends the events to a file.

record = Record(Path("runs/digits"))
with to_file(Path("runs/digits/metrics.jsonl")) as write:
    write(record.complete({"event": "step", "time": time.time(), "step": 1}))
"""

import contextlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from trainer.config.exits import Exit, Fault
from trainer.regular import open_to_append
from trainer.report.events import Event
from trainer.report.goodput import Account
from trainer.report.history import events, of_main

_log = logging.getLogger("trainer")


class Record:
    """The wall time of a run so far, earlier attempts included."""

    def __init__(self, folder: Path | None) -> None:
        self._account = Account()
        if folder is not None:
            with contextlib.suppress(OSError):
                for event in filter(of_main(folder), events(folder)):
                    self._account.take(event)

    def complete(self, event: Event) -> Event:
        """Return an event with the number of its attempt, or with goodput and the wall time by cause."""
        self._account.take(event)
        kind = event["event"]
        added: Event = {}
        if kind == "launch":
            added["attempt"] = self._account.launches
        if kind in ("step", "summary"):
            spent = self._account.by_cause()
            added |= {"goodput": self._account.goodput, "wall_s": self._account.wall}
            added["spent_s"] = {cause: round(seconds, 3) for cause, seconds in spent.items()}
        return event | added


@contextlib.contextmanager
def to_file(path: Path) -> Iterator[Callable[[Event], None]]:
    """Append events to `path`. Raises Fault(71) if it cannot be opened; a full disk loses lines."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_to_append(path)
    except OSError as error:
        raise Fault(
            Exit.MACHINE, f"{path}: {error.strerror}; set a TRAINER_OUT that can be written"
        ) from error
    torn = warned = False

    def write(event: Event) -> None:
        nonlocal torn, warned
        line = ("\n" * torn + as_line(event) + "\n").encode()
        try:
            torn = os.write(file, line) < len(line)
        except OSError as error:
            if not warned:
                _log.warning("%s: %s; events are missing there", path, error.strerror)
            warned = True

    try:
        yield write
    finally:
        os.close(file)


def as_line(event: Event) -> str:
    """Return the event as JSON; NaN and infinity become null."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in event.items()
    }
    return json.dumps(finite, allow_nan=False)
