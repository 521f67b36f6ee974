"""Reads the events that a program appends to the file MUSTER_EVENTS names: a JSON object a line.

file = EventFile(Path("/tmp/events.jsonl"))
for event in file.read(): ...       # {"step": 3, "loss": 0.5} is {"event": "step", "step": 3, ...}

Any program writes it: lines may be torn, huge or no JSON, and the file may be deleted, truncated or
replaced.
"""

import contextlib
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from trainer.report.events import Event
from trainer.report.history import checked
from trainer.report.live.record import as_line

# The events that a program may report. The launcher writes the others.
KINDS = ("step", "eval", "checkpoint", "fault", "usage", "profile", "summary")
_MOST = 1 << 18  # bytes read at once: about a second's work, if they are many short lines
_TIMEOUT = 5.0  # seconds to read the rest; a process that outlives its rank may write without end
_LONGEST = 1 << 16  # bytes of a line
_SHOWN = 80  # characters of a line in a message

_log = logging.getLogger("launch")


class EventFile:
    """Creates an empty file; each `read` continues where the last one ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._incomplete = b""
        self._is_long = False  # the incomplete line is too long already, and was dropped
        self._dropped = 0
        with contextlib.suppress(OSError):  # on a full disk there are no events
            path.touch()
        self._open()

    def read(self, *, to_end: bool = False) -> Iterator[Event]:
        """Yield what was appended since the last call, up to 256 KiB.

        `to_end`: read for up to five seconds, to the end; the last line may lack its line end.
        """
        end = time.monotonic() + _TIMEOUT
        while True:
            data = self._bytes()
            *lines, self._incomplete = (self._incomplete + data).split(b"\n")
            for line in lines:
                yield from self._event(line)
                self._is_long = False
            if len(self._incomplete) > _LONGEST:
                if not self._is_long:
                    self._drop(self._incomplete, f"longer than {_LONGEST} bytes")
                self._incomplete, self._is_long = b"", True
            if not data or not to_end:
                break
            if time.monotonic() >= end:
                _log.warning("MUSTER_EVENTS: too many events; the last ones are left out")
                return
        if to_end:
            last, self._incomplete = self._incomplete, b""
            yield from self._event(last)

    def close(self) -> None:
        """Close the file, and log how many lines were left out."""
        if self._dropped > 1:
            _log.warning("MUSTER_EVENTS: %d lines in all were left out", self._dropped)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        # Neither a link, which may lead anywhere, nor a pipe, which may block or never end.
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            if stat.S_ISREG(os.fstat(file).st_mode):
                self._file = file
            else:
                os.close(file)

    def _bytes(self) -> bytes:
        """Return the next bytes; when a file was read to its end, those of the file that replaced it."""
        data = b""
        with contextlib.suppress(OSError):
            if self._file >= 0:
                if os.fstat(self._file).st_size < os.lseek(self._file, 0, os.SEEK_CUR):  # truncated
                    os.lseek(self._file, 0, os.SEEK_SET)
                    self._incomplete = b""
                data = os.read(self._file, _MOST)
            if not data:
                there = self._path.lstat()
                if self._file < 0 or not os.path.samestat(there, os.fstat(self._file)):
                    self._incomplete, self._is_long = b"", False
                    self._open()
                    data = os.read(self._file, _MOST)  # OSError for -1, if it is no regular file
        return data

    def _event(self, line: bytes) -> Iterator[Event]:
        """Yield the event in a line, if there is one."""
        if self._is_long or not line.strip():
            return
        try:
            event = _parse(line)
        except (ValueError, RecursionError) as error:
            self._drop(line, str(error))
        else:
            yield event

    def _drop(self, line: bytes, reason: str) -> None:
        """Leave a line out; the log shows the first one."""
        self._dropped += 1
        if self._dropped == 1:
            text = line[:_SHOWN].decode(errors="replace")
            _log.warning("MUSTER_EVENTS: %r: %s; it is left out", text, reason)


def _parse(line: bytes) -> Event:
    """Return the event of a line. Raises ValueError."""
    if len(line) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST} bytes")
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004  # as json raises
    kind = found.pop("event", "step")
    if kind not in KINDS:
        raise ValueError(f"event must be one of {', '.join(KINDS)}")
    event = checked({"event": kind, **found})
    if kind == "step" and "step" not in event:
        raise ValueError("a step event must have its step, a number")
    as_line(event)  # raises for NaN and infinity within a value
    return event
