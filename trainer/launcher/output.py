"""The output of this node's ranks, carried on line by line, each line with the rank that says it.

Ranks that write to one pipe tear each other's lines, and nobody can tell them apart. torch's own `--tee`
tells them apart, but by way of files that fill the disk, and with a prefix before JSON as well.

    with carried(2) as output: ...   # a rank's output goes to output.targets({0: 4, 1: 5})
"""

import contextlib
import os
import re
import selectors
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trainer.config.lines import EVENT, of_rank
from trainer.launcher.log import write_all

_END = re.compile(rb"\r\n|\r|\n")  # a progress bar ends its lines with \r
_PIECE = 65536  # bytes, what a pipe of Linux holds
_LONGEST = 1 << 20  # bytes of a line that never ends; then it is broken
_PATIENCE = 5.0  # seconds for who reads our output to take the last of it


@dataclass
class _Stream:
    """One rank's pipe: `pipe` reads, `path` is what the rank opens; it goes on to our own `to`."""

    pipe: int
    held: int
    to: int
    prefix: bytes = b""
    keeps: bytes | None = None  # lines that begin with it stay as they are
    rest: bytes = field(default=b"")

    @property
    def path(self) -> str:
        return f"/dev/fd/{self.held}"

    def take(self) -> bool:
        """Carry on what is there, and return whether there was anything."""
        try:
            piece = os.read(self.pipe, _PIECE)
        except BlockingIOError:
            return False
        begin, whole = 0, []
        for found in _END.finditer(piece):
            whole.append(self._told(self.rest + piece[begin : found.end()]))
            self.rest, begin = b"", found.end()
        self.rest += piece[begin:]
        write_all(self.to, b"".join(whole))  # lost where nobody reads: the training goes on
        if len(self.rest) > _LONGEST:
            self.finish()
        return True

    def finish(self) -> None:
        """Carry on a line that has no end, too."""
        if self.rest:
            write_all(self.to, self._told(self.rest + b"\n"))
        self.rest = b""

    def _told(self, line: bytes) -> bytes:
        return line if self.keeps and line.startswith(self.keeps) else self.prefix + line


class Output:
    """The pipes of this node's ranks, read by a thread of their own."""

    def __init__(self, ranks: int) -> None:
        # Who sits at a terminal sees a rank's own words there, progress bars and all.
        taken = [stream.fileno() for stream in (sys.stdout, sys.stderr) if not stream.isatty()]
        self._streams = {(rank, to): _stream(to) for rank in range(ranks) for to in taken}
        self._one_at_a_time = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="output", daemon=True)
        self._thread.start()

    def targets(self, ranks: Mapping[int, int]) -> tuple[dict[int, str], dict[int, str]]:
        """Return what the next ranks' stdout and stderr go to, by local rank; "" is our own.

        `ranks` are the global ranks by local rank.
        """
        self.drain()
        for (local, to), stream in self._streams.items():
            stream.prefix = of_rank(ranks[local]).encode()
            events = to == sys.stdout.fileno() and ranks[local] == 0
            stream.keeps = EVENT.encode() if events else None
        out, err = (
            {local: self._path(local, stream.fileno()) for local in ranks}
            for stream in (sys.stdout, sys.stderr)
        )
        return out, err

    def _path(self, local: int, to: int) -> str:
        stream = self._streams.get((local, to))
        return stream.path if stream else ""

    def drain(self) -> None:
        """Carry on all that the ranks have said, once they have ended."""
        if not self._one_at_a_time.acquire(timeout=_PATIENCE):
            return  # nobody reads what we write
        try:
            end = time.monotonic() + _PATIENCE
            for stream in self._streams.values():
                while stream.take() and time.monotonic() < end:
                    pass
                stream.finish()
        finally:
            self._one_at_a_time.release()

    def close(self) -> None:
        self.drain()
        self._ending.set()
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            for stream in self._streams.values():
                os.close(stream.pipe)
                os.close(stream.held)

    def _carry(self) -> None:
        with selectors.DefaultSelector() as ready:
            for stream in self._streams.values():
                ready.register(stream.pipe, selectors.EVENT_READ, stream)
            while not self._ending.is_set():
                for key, _ in ready.select(timeout=0.2):
                    with self._one_at_a_time:
                        key.data.take()


@contextlib.contextmanager
def carried(ranks: int) -> Iterator[Output]:
    """Yield what carries on the output of `ranks` ranks at most; at the end all has been told."""
    output = Output(ranks)
    try:
        yield output
    finally:
        output.close()


def _stream(to: int) -> _Stream:
    # We hold the writing end too: it has no end until the last round of ranks has.
    pipe, held = os.pipe()
    os.set_blocking(pipe, False)
    return _Stream(pipe, held, to)
