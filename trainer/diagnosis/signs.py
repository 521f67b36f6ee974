"""Signs of a failure: from a log, a pod, an event or a launcher, each with its source.

signs = read_log(text.splitlines(), source="log of digits-0-abcde", place="node 0")
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

# Starts of lines in a log that no rank wrote: the launcher's, events, the date of a start.
NOT_OF_RANKS = ("launch: ", "{", "--- ")
# What the launcher writes before it starts ranks, for the first time or again.
BEGIN = re.compile(
    r"--- |launch: (?:the output of this node|restarting the ranks|.*; starting the next round)"
)
_LONGEST_DETAIL = 100  # lines before a failure's line that are kept
# Characters that are kept of a line's start and end: some patterns take quadratic time.
_HALF = 1000

# As trainer/launcher/failures.py writes them; timestamps are Kubernetes'.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z) ")
_RANK = re.compile(r"launch: rank (\d+): (.*) \(exit (-?\d+)\)$")
_FROM_RANK = re.compile(r"\[rank (\d+)\] (.*)$")
_OWN = re.compile(r"\w+: (.*) \(exit (\d+)\)$")
_AFTER = re.compile(r", after rank \d+ had failed$")


@dataclass(frozen=True)
class Sign:
    """`text` is what `source` says about `who`; `detail` are the lines before it, oldest first.

    `time`: seconds since the epoch. `follows`: its writer names another rank as the first to fail.
    """

    text: str
    source: str
    who: str = ""
    time: float | None = None
    detail: tuple[str, ...] = ()
    follows: bool = False


def read_log(lines: Iterable[str], *, source: str, place: str = "") -> Iterator[Sign]:
    """Yield the failures that a launcher's log names, with times if the lines have timestamps.

    On a node with one rank, lines have no `[rank N] ` before them.
    """
    before: list[tuple[str, str]] = []  # rank and text
    for line in map(cut, lines):
        stamp = _STAMP.match(line)
        text = line[stamp.end() :] if stamp else line
        time = as_seconds(stamp[1]) if stamp else None
        if found := _RANK.search(text):
            message, after = _AFTER.subn("", found[2])
            who = f"rank {found[1]}" + (f" ({place})" if place else "")
            detail = _last(before, rank=found[1])
            yield Sign(f"{message} (exit {found[3]})", source, who, time, detail, bool(after))
        elif found := _FROM_RANK.match(text):
            before.append((found[1], found[2]))
        elif found := _OWN.match(text):
            yield Sign(found[0].partition(": ")[2], source, place, time, _last(before, rank=""))
        elif text.startswith('{"event": "error"'):
            yield from _error_event(text, source=source, place=place, time=time)
        elif BEGIN.match(text):
            before.clear()
        elif not text.startswith(NOT_OF_RANKS):
            before.append(("", text))


def cut(line: str) -> str:
    """Return a line; if it is too long, without its middle."""
    return line if len(line) <= 2 * _HALF else f"{line[:_HALF]}...{line[-_HALF:]}"


def _last(before: list[tuple[str, str]], *, rank: str) -> tuple[str, ...]:
    own = [text for whose, text in before if whose in (rank, "")]
    return tuple(own[-_LONGEST_DETAIL:])


def _error_event(text: str, *, source: str, place: str, time: float | None) -> Iterator[Sign]:
    try:
        event = json.loads(text)
        yield Sign(f"{event['message']} (exit {int(event['code'])})", source, place, time)
    except (ValueError, LookupError, TypeError, RecursionError):
        return  # torn, or not one of ours


def as_seconds(timestamp: str | None) -> float | None:
    """Return a Kubernetes timestamp as seconds since the epoch; None if it is not a timestamp."""
    try:
        return datetime.fromisoformat(timestamp or "").timestamp()
    except ValueError:
        return None
