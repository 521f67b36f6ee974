"""Follows a run's `metrics.jsonl` and sends its figures to a tracker; started by `process.py`.

python -m trainer.report.trackers mlflow runs/digits 0 < /dev/null     # sends all events, then ends

`tracker-NAME.json` in the run folder says how much has been sent. The next attempt continues from there
with the same run of the tracker. A step that is repeated is not sent again.
"""

import contextlib
import fcntl
import importlib
import json
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainer.config.environment import PREFIX
from trainer.config.exits import Exit
from trainer.config.lines import EVENT
from trainer.config.log import log_to_stderr
from trainer.report.events import Event, curves
from trainer.report.history import exit_of
from trainer.report.trackers import END, Figures, Start, Tracker

log = logging.getLogger("trainer")

_POLL = 1.0  # seconds between two looks at the file
_RETRY = 10.0  # seconds after a failure
_LINES = 500  # sent at once, at most
_FACTS = ("mode", "world_size", "nodes", "device", "torch", "host", "parameters", "code_sha256")


@dataclass
class _Sent:
    """What has been sent: up to which byte of the file, and the last step of each kind of event.

    The other fields come from the run's first launch event: all attempts use them for the tracker's run.
    """

    offset: int
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    project: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)


class _Follower:
    """Sends the new events of the file; what fails is sent again later."""

    def __init__(self, name: str, folder: Path, first: int) -> None:
        self._name, self._folder = name, folder
        self._kept = folder / f"tracker-{name}.json"
        self._lock = self._kept.with_suffix(".lock").open("w")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # that of a killed attempt may still be sending
        self._sent = _Sent(first)
        with contextlib.suppress(OSError, ValueError, TypeError):
            self._sent = _Sent(**json.loads(self._kept.read_text(encoding="utf-8")))
        self._tracker: Tracker | None = None
        self._code: int | None = None  # until an event says how the run ended

    def send_new(self) -> bool:
        """Send new events, or a part of them; return whether there were any."""
        found, offset = _read(self._folder / "metrics.jsonl", self._sent.offset)
        if not found:
            return False
        if self._tracker is None:
            self._tracker = self._begin(found[0])
        steps = dict(self._sent.steps)
        self._tracker.send(list(_unsent(found, steps)))
        self._sent.offset, self._sent.steps = offset, steps
        self._keep()
        for event in found:
            self._code = None if event["event"] == "launch" else exit_of(event, self._code)
        return True

    def finish(self) -> None:
        """End the tracker's run."""
        if self._tracker is not None:
            self._tracker.finish(int(Exit.CODE) if self._code is None else self._code)

    def _begin(self, event: Event) -> Tracker:
        module = importlib.import_module(f"trainer.report.trackers.{self._name}")
        sent, folder = self._sent, self._folder.resolve()
        if not sent.project:
            settings = event.get("settings", {}).items()
            sent.project = str(event.get("task", "muster")).replace(":", ".")
            sent.parameters = {name: str(event[name]) for name in _FACTS if event.get(name)}
            sent.parameters |= {name[len(PREFIX) :].lower(): str(value) for name, value in settings}
            self._keep()  # before the run begins, as this process may be killed in between
        tracker: Tracker = module.Run(
            Start(sent.id, sent.project, folder.name, str(folder), sent.parameters)
        )
        return tracker

    def _keep(self) -> None:
        new = self._kept.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: a later attempt may send figures twice
            new.write_text(json.dumps(asdict(self._sent)), encoding="utf-8")
            new.replace(self._kept)


def main() -> int:
    """Follow the run until its process ends and return 0."""
    name, folder, first = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    log_to_stderr()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the rank saves first, and has more to report
    ended = threading.Event()
    threading.Thread(target=_await_end, args=(ended,), daemon=True).start()
    follower = _Follower(name, folder, first)
    warned = False
    while True:
        last, pause = ended.is_set(), _POLL
        try:
            if follower.send_new():
                continue
            if last:
                follower.finish()
        except Exception as error:  # noqa: BLE001  # whatever a tracker's library raises
            if not warned:
                text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                log.warning(
                    "TRAINER_TRACKER=%s: %s; the run goes on; this is reported once", name, text
                )
            warned, pause = True, _RETRY
        if last:
            break
        ended.wait(pause)
    # Skip the libraries' exit functions: what they wait for may never come.
    sys.stderr.flush()
    os._exit(0)


def _await_end(ended: threading.Event) -> None:
    """Wait until the run or its process ends; then set an alarm that ends this process in any case."""
    line = sys.stdin.readline()
    signal.alarm(int(line or END))
    ended.set()


def _read(file: Path, offset: int) -> tuple[list[Event], int]:
    """Return the next events and the offset after them; an incomplete line is left for later."""
    found: list[Event] = []
    with file.open("rb") as lines:
        lines.seek(offset)
        while len(found) < _LINES and (line := lines.readline()).endswith(b"\n"):
            offset += len(line)
            if line.startswith(EVENT.encode()):
                with contextlib.suppress(ValueError):  # torn, by a full disk
                    found.append(json.loads(line))
    return found, offset


def _unsent(found: list[Event], steps: dict[str, int]) -> Iterator[Figures]:
    """Yield the events' figures, and note their steps in `steps`."""
    for event in found:
        kind, step = event["event"], int(event.get("step") or event.get("steps") or 0)
        values = curves(event) if kind != "summary" else _of_summary(event)
        # An event without a loss had a non-finite one: the run goes back and repeats the step.
        finite = event.get("loss", 0) is not None
        if values and finite and step > steps.get(kind, -1):
            steps[kind] = step
            yield Figures(step, event["time"], values)


def _of_summary(event: Event) -> dict[str, float]:
    numbers = {name: event[name] for name in event if isinstance(event[name], int | float)}
    return {f"summary/{name}": value for name, value in numbers.items() if name != "time"}


if __name__ == "__main__":
    sys.exit(main())
