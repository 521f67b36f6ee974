"""A program's events, in the trainer's form: from the launcher, from output lines and from a file.

run = RunEvents(Path("runs/train"), program={"program": "train"}, patterns={}, metrics_port=0)
run.begin(place, folder)            # the launch event; run.file is for MUSTER_EVENTS
run.read_line("step=3 loss=0.25")   # an event as a line for standard output, "" without one
run.poll()                          # the events of the file
run.end(Exit.DONE, "")              # summary, error, or the fault `stopped`
"""

import contextlib
import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from trainer.commit import code_here
from trainer.config.exits import Exit, Fault
from trainer.launcher.output.event_file import EventFile
from trainer.launcher.output.metrics_port import MetricsPort
from trainer.launcher.output.patterns import Patterns
from trainer.rendezvous.events import Round
from trainer.report.events import Event, is_number, scores
from trainer.report.live.record import Record, as_line, to_file

_log = logging.getLogger("launch")


class RunEvents:
    """The events on the node with rank 0; on other nodes it only serves the port. Two threads use it."""

    def __init__(
        self,
        folder: Path,
        *,
        program: Mapping[str, str],
        patterns: Mapping[str, str],
        metrics_port: int,
    ) -> None:
        self.has_patterns = bool(patterns)
        self.file: Path | None = None  # rank 0 may append events of this round to it
        self._folder, self._program = folder, program
        self._patterns = Patterns(patterns)
        self._port = MetricsPort(metrics_port, folder)
        self._lock = threading.RLock()
        self._stack = contextlib.ExitStack()
        self._place: Round | None = None
        self._began = self._polled = 0.0

    def begin(self, place: Round, folder: Path) -> None:
        """Report the launch of a round's ranks, just before they start; `file` will be in `folder`."""
        with self._lock:
            self._place = place
            self._began = self._polled = time.time()
            self._port.began()
            self.file = None
            if place.first_rank > 0:
                return
            self.file = folder / f"round-{place.number}-events.jsonl"
            self._events = EventFile(self.file)
            self._record = Record(self._folder)
            self._last: dict[str, Event] = {}
            launch: Event = {
                **self._program,
                "nodes": place.nodes,
                "world_size": place.world_size,
                "out": str(self._folder),
                "host": socket.gethostname(),
                **code_here(),
                "began": self._began,
            }
            self._take({"event": "launch", **launch})

    def read_line(self, line: str) -> str:
        """Return the event in a line of rank 0, as a line; "" if there is none."""
        with self._lock:
            event = self._patterns.read(line)
            return self._take(event) if event else ""

    def poll(self, *, to_end: bool = False) -> str:
        """Return the new events of the file, as lines."""
        with self._lock:
            self._port.poll()
            if self.file is None:
                return ""
            return "".join(f"{line}\n" for line in self._of_file(to_end=to_end))

    def end_round(self) -> str:
        """Return the last events of the file, as lines, after the ranks have ended."""
        with self._lock:
            lines = self.poll(to_end=True)
            if self.file is not None:
                self._events.close()
                self.file = None
            return lines

    def end(self, code: Exit, reason: str) -> None:
        """Report how the run ended; a run without any step has no summary."""
        with self._lock, self._stack:
            self._port.close()
            if self._place is None or self._place.first_rank > 0:
                return
            step = self._last.get("step", {}).get("step")
            if code == Exit.STOPPED:
                self._take({"event": "fault", "kind": "stopped", "step": step})
            elif code != Exit.DONE:
                self._take({"event": "error", "code": int(code), "message": reason})
            elif step is not None or "summary" in self._last:
                self._take({"event": "summary", **self._summary()})

    @functools.cached_property
    def _write(self) -> Callable[[Event], None]:
        """Write an event to the run folder; the file is opened for the first event."""
        try:
            return self._stack.enter_context(to_file(self._folder / "metrics.jsonl"))
        except Fault as fault:  # does not stop the run
            _log.warning("%s; no events are kept", fault)
            return lambda _: None

    def _of_file(self, *, to_end: bool) -> Iterator[str]:
        found, since, now = [*self._events.read(to_end=to_end)], self._polled, time.time()
        self._polled = now
        for number, event in enumerate(found, 1):
            # Events without a time are taken as evenly spread over the time since the last read.
            event.setdefault("time", since + (now - since) * number / len(found))
            if event["event"] == "summary":  # reported once, at the end
                self._last["summary"] = event
                continue
            if event["event"] == "eval":
                name = next((name for name, one in scores(event).items() if is_number(one)), None)
                if name is not None:
                    event.setdefault("metric", name)
            yield self._take(event)

    def _take(self, event: Event) -> str:
        """Write an event to the run folder, and keep its figures; return its line."""
        now = time.time()
        when = event.get("time", now)
        first = {"event": event["event"], "time": when if self._began <= when <= now else now}
        found = self._record.complete({**first, **event, **first})
        self._last[found["event"]] = found
        self._write(found)
        self._port.take(found)
        return as_line(found)

    def _summary(self) -> Event:
        assert self._place is not None  # noqa: S101  # tells mypy
        step, saved = self._last.get("step", {}), self._last.get("checkpoint", {})
        own = {k: v for k, v in self._last.get("summary", {}).items() if k not in ("event", "time")}
        figures = {
            "steps": step.get("step"),
            "samples_per_s": step.get("samples_per_s"),
            "seconds": time.time() - self._began,
            "checkpoint": saved.get("path"),
            "world_size": self._place.world_size,
            **scores(self._last.get("eval", {})),
        }
        return {name: value for name, value in figures.items() if value is not None} | own
