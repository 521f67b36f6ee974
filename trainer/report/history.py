"""Reads what a run left in its folder: events of rank 0, and of the launchers of all its nodes.

    history = read(Path("runs/digits"))
    history.curves["loss"].steps, history.attempts[0].exit, history.account.goodput

The files may come from elsewhere: lines that are no events are skipped, and figures are finite numbers.
"""

import heapq
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config.exits import Exit, Fault
from trainer.config.lines import EVENT
from trainer.regular import open_regular
from trainer.report.events import Event, is_number, scores
from trainer.report.goodput import PHASES, Account

# Of step events.
CURVES = (
    *("loss", "grad_norm", "lr", "memory"),
    *("samples_per_s", "tokens_per_s", "flops_per_s", "peak_share"),
)
# Fields that must be numbers; any other value is left out of its event.
_NUMBERS = frozenset(
    (
        *CURVES,
        "step",
        "steps",
        "epoch",
        "samples",
        "slowest_s",
        "middle_s",
        "stragglers_s",
        "seconds",
        "data_s",
        "blocked_s",
        "bytes",
        "exit",
        "code",
        "world_size",
        "nodes",
        "node",
        "first_rank",
        "restarts",
        "rank",
        "own_s",
        "wait_s",
        *(f"{phase}_s" for phase in PHASES),
        *("calls", "first", "last", "median_s", "cpu", "busy", "to"),
    )
)
_TIMES = frozenset(("began", "time"))
_LONGEST = 1 << 20  # bytes of a line
_MOST = 1 << 29  # bytes of a file, from its end
_LONGEST_TEXT = 300  # characters of a field that is shown
_NOT_SAID = ("event", "time", "step")  # fields that a mark of a time line does not repeat


@dataclass
class Curve:
    """A figure by step, ascending. A repeated step replaces the earlier one and all that follow it."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            self.values.pop()
        self.steps.append(step)
        self.values.append(value)


@dataclass(frozen=True)
class Mark:
    """An evaluation, checkpoint, resumption or fault: its time, and a text that describes it."""

    time: float
    kind: str
    step: int | None
    text: str


@dataclass
class Attempt:
    """From the start of the processes to their end; times in seconds since the epoch.

    `ended` is the time of its last event. `exit` is None when it was killed, or still runs.
    `failures`: the failed ranks, the first cause first, as the launchers wrote them, with host and node.
    """

    began: float
    ended: float
    launch: Event = field(default_factory=dict)
    exit: int | None = None
    reason: str = ""
    last_step: int | None = None
    seen: set[tuple[str, str]] = field(default_factory=set)  # a launcher's action, and its node
    failures: list[Event] = field(default_factory=list)
    ending: Event = field(default_factory=dict)  # its summary or error event


@dataclass
class History:
    """A run."""

    name: str
    folder: Path
    attempts: list[Attempt] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)
    evaluations: dict[str, Curve] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    usage: list[Event] = field(default_factory=list)
    profile: Event = field(default_factory=dict)  # the newest
    account: Account = field(default_factory=Account)
    metric: str | None = None
    steps: int | None = None  # that the run will take

    @property
    def launch(self) -> Event:
        """The newest launch event, or one without fields."""
        return next((one.launch for one in reversed(self.attempts) if one.launch), {})


def read(folder: Path) -> History:
    """Read a run folder. Raises Fault(65) when it holds no events or cannot be read."""
    history = History(folder.resolve().name, folder)
    try:
        is_main = of_main(folder)
        for event in events(folder):
            _take(history, event)
            if is_main(event):
                history.account.take(event)
    except OSError as error:
        raise Fault(Exit.DATA, f"{error.filename}: cannot be read: {error.strerror}") from None
    if not history.attempts:
        raise Fault(
            Exit.DATA, f"{folder}: no event in metrics.jsonl or logs/; is it a run's TRAINER_OUT?"
        )
    return history


def read_all(folders: Iterable[Path]) -> list[History]:
    """Read several runs, each once. If folders have the same name, all runs are named by their paths."""
    paths = {folder.resolve(): folder for folder in folders}
    runs = [read(folder) for folder in paths.values()]
    if len({run.name for run in runs}) < len(runs):
        above = os.path.commonpath(paths)
        for run, path in zip(runs, paths, strict=True):
            run.name = str(path.relative_to(above))
    return runs


def events(folder: Path) -> Iterator[Event]:
    """Yield the events of a run folder by time.

    Rank 0's events are in order already and are not held in memory: a long run has millions.
    """
    files = event_files(folder)
    own = [_read(file) for file in files if file.parent == folder]
    yield from heapq.merge(*own, sorted(_of_launchers(files, folder), key=_time), key=_time)


def event_files(folder: Path) -> list[Path]:
    """Return the files of a run folder that hold events."""
    files = [folder / "metrics.jsonl", *sorted((folder / "logs").glob("*.jsonl"))]
    return [file for file in files if file.is_file()]


def _of_launchers(files: list[Path], folder: Path) -> Iterator[Event]:
    return (event for file in files if file.parent != folder for event in _read(file))


def _time(event: Event) -> float:
    return float(event["time"])


def of_main(folder: Path) -> Callable[[Event], bool]:
    """Return a function that is False for the events of a launcher that never had rank 0."""
    launchers = _of_launchers(event_files(folder), folder)
    main = {event.get("host") for event in launchers if event.get("first_rank") == 0}
    return lambda event: event["event"] != "attempt" or not main or event.get("host") in main


def _read(file: Path) -> Iterator[Event]:
    with open_regular(file) as lines:
        lines.seek(max(0, os.fstat(lines.fileno()).st_size - _MOST))
        while line := lines.readline(_LONGEST):
            if not line.startswith(EVENT.encode()):
                continue
            try:
                event = checked(json.loads(line.decode(errors="replace")))
            except (ValueError, RecursionError):
                continue  # torn, by a full disk
            if _is_time(event.get("time")) and isinstance(event["event"], str):
                yield event


def checked(event: Event) -> Event:
    """Return an event without the fields whose value is not a number but should be."""
    kept = {
        name: value
        for name, value in event.items()
        if (name not in _NUMBERS or is_number(value)) and (name not in _TIMES or _is_time(value))
    }
    for name in ("ranks", "operations"):
        if name in kept:
            parts = kept[name] if isinstance(kept[name], list) else []
            kept[name] = [checked(one) for one in parts if isinstance(one, dict)]
    if not isinstance(kept.get("settings", {}), dict):
        del kept["settings"]
    return kept


def _is_time(value: Any) -> bool:
    """Return whether a value may be a time in seconds since the epoch."""
    return is_number(value) and 0 <= value < 1e11


def _take(history: History, event: Event) -> None:
    attempt = _attempt_of(history, event)
    attempt.ended = max(attempt.ended, event["time"])
    kind = event["event"]
    if kind == "attempt":
        _take_attempt(attempt, event)
    elif kind == "launch":
        attempt.launch = event
    elif kind == "step" and "step" in event:
        attempt.last_step = int(event["step"])
        history.steps = int(event["steps"]) if "steps" in event else history.steps
        for name in CURVES:
            if name in event:
                history.curves.setdefault(name, Curve()).add(attempt.last_step, event[name])
    elif kind == "eval" and "step" in event:
        _take_evaluation(history, event)
    elif kind in ("checkpoint", "fault"):
        _mark(history, event, "resumption" if event.get("action") == "resumed" else kind)
    elif kind == "usage" and "ranks" in event:
        history.usage.append(event)
    elif kind == "profile":
        history.profile = event
    attempt.ending = event if kind in ("summary", "error") else attempt.ending
    attempt.exit = exit_of(event, attempt.exit)


def exit_of(event: Event, code: int | None) -> int | None:
    """Return an attempt's exit code as rank 0 wrote it, or `code` if the event has none."""
    if event["event"] == "summary":
        return int(Exit.DONE)
    if event["event"] == "error":
        return int(event.get("code", Exit.CODE))
    return int(Exit.STOPPED) if event.get("kind") == "stopped" else code


def _take_evaluation(history: History, event: Event) -> None:
    history.metric = str(event.get("metric", "")) or history.metric
    for name in ("loss", *scores(event)):
        if is_number(event.get(name)):
            curve = history.evaluations.setdefault(name, Curve())
            curve.add(int(event["step"]), float(event[name]))
    _mark(history, event, "evaluation")


def _mark(history: History, event: Event, kind: str) -> None:
    names = [name for name in event if name not in _NOT_SAID and event[name] is not None]
    parts = [f"{name.replace('_', ' ')} {_short(event[name])}" for name in names]
    step = int(event["step"]) if "step" in event else None
    history.marks.append(Mark(event["time"], kind, step, ", ".join(parts)))
    if event.get("kind") == "stopped" and step is not None:  # between two step events
        history.attempts[-1].last_step = step


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:_LONGEST_TEXT]


def _attempt_of(history: History, event: Event) -> Attempt:
    """Return the attempt that an event belongs to: the last one, or a new one that the event starts."""
    attempts, time = history.attempts, event["time"]
    launcher = str(event.get("action")) if event["event"] == "attempt" else ""
    # A node's number stays when its next pod has another name; in an elastic job it has no number.
    node = event.get("host") if event.get("node") is None else event["node"]
    sign = (launcher, str(node))
    last = attempts[-1] if attempts else None
    is_over = last is None or last.exit is not None or bool(last.failures)
    begins = (
        last is None
        or (launcher in ("launched", "started") and (is_over or sign in last.seen))
        or (event["event"] == "launch" and (bool(last.launch) or is_over))
    )
    if last is None or begins:
        last = Attempt(float(event["began" if "began" in event else "time"]), time)
        attempts.append(last)
    last.seen.add(sign)
    return last


def _take_attempt(attempt: Attempt, event: Event) -> None:
    match event.get("action"):
        case "failed" if event.get("ranks"):
            place = {name: event.get(name) for name in ("host", "node")}
            attempt.failures += [{**rank, **place} for rank in event["ranks"]]
            code = int(attempt.failures[0].get("exit", Exit.CODE))
            # A killed rank has minus the number of the signal.
            attempt.exit = code if code > 0 else int(Exit.CODE)
        case "ended" if "exit" in event:
            code = int(event["exit"])
            # Prefer a node that names a cause to one that lost a peer.
            if attempt.exit in (None, Exit.DONE, Exit.PEER):
                attempt.exit, attempt.reason = code, str(event.get("reason", ""))
