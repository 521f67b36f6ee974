"""Forwards the output of this node's ranks line by line, with the rank before each line.

Ranks that write to one pipe tear each other's lines. torchrun's `--tee` avoids that, but also writes
all output to files, which fill the disk, and puts its prefix before JSON, too.

    with closing(RankOutput(2)) as output:
        files = output.files(first_rank=4, world_size=8)    # {0: (stdout, stderr), 1: ...}
"""

import os
import re
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.config.lines import EVENT, rank_prefix
from trainer.launcher.output.log_file import write_all
from trainer.launcher.output.run_events import RunEvents

_LINE_END = re.compile(rb"\r\n|\r|\n")  # a progress bar ends its lines with \r
_PIPE_SIZE = 65536  # bytes, as on Linux
_MAX_LINE = 1 << 20  # bytes; a longer line is broken
_LAST_LINES = 100  # kept of each stream: enough for an error and its cause
_TRACEBACK = re.compile(rb"(\[rank\d+\]: )?Traceback \(most recent call last\):")  # torch's prefix
_POLL = 0.2  # seconds between two looks at the events that a program writes to a file
_TIMEOUT = 5.0  # seconds to write the rest if nobody reads our stdout or stderr


@dataclass
class _Stream:
    """The pipe of one rank's stdout or stderr, forwarded to our descriptor `target`."""

    read_end: int
    write_end: int  # kept open, so that there is no end of file before the last round of ranks
    target: int
    prefix: bytes = b""
    unprefixed: bytes | None = None  # a line that starts with this gets no prefix
    incomplete: bytes = b""
    last: deque[bytes] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    on_line: Callable[[str], str] | None = None  # its result is forwarded, too
    raised_at: float = 0.0  # when the newest traceback began; seconds since the epoch

    def forward(self) -> int:
        """Forward what has arrived; return the number of bytes."""
        try:
            data = os.read(self.read_end, _PIPE_SIZE)
        except BlockingIOError:
            return 0
        start, lines = 0, []
        for end in _LINE_END.finditer(data):
            lines.append(self._prefixed(self.incomplete + data[start : end.end()]))
            self.incomplete, start = b"", end.end()
        self.incomplete += data[start:]
        write_all(self.target, b"".join(lines))  # lost without a reader; training continues
        if len(self.incomplete) > _MAX_LINE:
            self.end_line()
        return len(data)

    def end_line(self) -> None:
        """Forward an incomplete line, with a line end."""
        if self.incomplete:
            write_all(self.target, self._prefixed(self.incomplete + b"\n"))
        self.incomplete = b""

    def _prefixed(self, line: bytes) -> bytes:
        self.last.append(line)
        if _TRACEBACK.match(line):
            self.raised_at = time.time()
        if self.on_line and (event := self.on_line(line.decode(errors="replace"))):
            write_all(sys.stdout.fileno(), f"{event}\n".encode())
        plain = self.unprefixed and line.startswith(self.unprefixed)
        return line if plain else self.prefix + line


class RankOutput:
    """Pipes for up to `ranks` local ranks, read by a thread.

    Ranks write to a terminal directly, unless `is_read` or the patterns of `events` need each line.
    `events` also reads a file.
    """

    def __init__(
        self, ranks: int, *, is_read: bool = False, events: RunEvents | None = None
    ) -> None:
        self._read = events.read_line if events and events.has_patterns else None
        self._ranks, self._is_read, self._events = ranks, is_read or self._read is not None, events
        self.bytes = 0  # written by the ranks
        streams = (sys.stdout, sys.stderr)
        targets = [one.fileno() for one in streams if self._is_read or not one.isatty()]
        self._streams = {
            (rank, target): _new_stream(target) for rank in range(ranks) for target in targets
        }
        self._forwarding = threading.Lock()
        self._closing, self._close = os.pipe()  # readable when closed
        self._thread = threading.Thread(target=self._forward, name="output", daemon=True)
        self._thread.start()

    def files(self, first_rank: int, world_size: int) -> dict[int, tuple[int, int]]:
        """Return the descriptors for the next ranks' stdout and stderr by local rank.

        In a job of one rank, the rank has the launcher's own, because no prefix is needed.
        """
        self._drain()
        for (local, target), stream in self._streams.items():
            is_first = first_rank + local == 0
            stream.prefix = rank_prefix(first_rank + local).encode() if world_size > 1 else b""
            stream.on_line = self._read if is_first else None
            stream.last.clear()
            stream.raised_at = 0.0
            has_events = target == sys.stdout.fileno() and is_first
            stream.unprefixed = EVENT.encode() if has_events else None
        own = sys.stdout.fileno(), sys.stderr.fileno()
        is_piped = self._is_read or world_size > 1
        ends = {key: stream.write_end for key, stream in self._streams.items() if is_piped}
        return {
            local: (ends.get((local, own[0]), own[0]), ends.get((local, own[1]), own[1]))
            for local in range(self._ranks)
        }

    def drain(self) -> None:
        """Forward all that the ranks have written; call it after they have ended."""
        self._drain(is_end=True)

    def _drain(self, *, is_end: bool = False) -> None:
        if not self._forwarding.acquire(timeout=_TIMEOUT):
            return  # nobody reads our own output
        try:
            end = time.monotonic() + _TIMEOUT
            for stream in self._streams.values():
                while (count := stream.forward()) and time.monotonic() < end:
                    self.bytes += count
                stream.end_line()
            if self._events and is_end:
                self._write(self._events.end_round())
        finally:
            self._forwarding.release()

    def last_lines(self, local: int) -> list[str]:
        """Return the last lines of a rank's stderr, if that is a pipe."""
        stream = self._streams.get((local, sys.stderr.fileno()))
        return [line.decode(errors="replace").rstrip() for line in stream.last] if stream else []

    def raised(self, since: float, until: float) -> dict[int, float]:
        """Return the local ranks whose newest traceback began between two times, and when it began."""
        return {
            local: stream.raised_at
            for (local, number), stream in self._streams.items()
            if number == sys.stderr.fileno() and since < stream.raised_at <= until
        }

    def close(self) -> None:
        """Forward the rest, and close the pipes."""
        self.drain()
        os.close(self._close)
        self._thread.join(_TIMEOUT)
        if not self._thread.is_alive():
            os.close(self._closing)
            for stream in self._streams.values():
                os.close(stream.read_end)
                os.close(stream.write_end)

    def _forward(self) -> None:
        with selectors.DefaultSelector() as ready:
            for stream in self._streams.values():
                ready.register(stream.read_end, selectors.EVENT_READ, stream)
            ready.register(self._closing, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(_POLL if self._events else None):
                    if key.data is None:
                        return
                    with self._forwarding:
                        self.bytes += key.data.forward()
                if self._events:
                    with self._forwarding:
                        self._write(self._events.poll())

    def _write(self, events: str) -> None:
        """Write events as lines to our stdout, except to a terminal to which the ranks write."""
        if events and (self._is_read or not sys.stdout.isatty()):
            write_all(sys.stdout.fileno(), events.encode())


def _new_stream(target: int) -> _Stream:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    return _Stream(read_end, write_end, target)
