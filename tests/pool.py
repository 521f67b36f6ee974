"""Running ranks that the tests share: each takes one case after another, with torch loaded and warm.

A new process for every rank of every case would cost seconds. Between two cases a rank resets what the
first one has left: environment variables, seeds, defaults, caches. It is used again only after a case
that ended with 0 or 64; after any other end it is replaced. A rank that waits for a case is stopped
(SIGSTOP), because the threads of gloo, which it keeps, poll a hundred times a second.

    with lend(2) as ranks:
        endings = carry_out(Case({"TRAINER_TASK": "digits"}), ranks, timeout=120)
"""

import atexit
import contextlib
import functools
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.pool_rank import Case, serve

_CONTEXT = multiprocessing.get_context("forkserver")
# the first optimizer imports torch._dynamo: import it once, not in every rank
_CONTEXT.set_forkserver_preload(
    [
        "trainer.engine.loop",
        "trainer.strategies.ddp_zero1",
        "trainer.strategies.hsdp",
        "trainer.tasks.digits",
        "torch._dynamo",
        "tests.pool_rank",
    ]
)

# Once one rank has failed, its peers have lost a connection. They may take this long to notice.
_GRACE = 30.0
_FIT_FOR_MORE = (0, 64)

# A rank that does not listen by then has failed, or is waiting for something else.
_LISTENING = 5.0

# Then ranks are replaced: a process group never frees its threads, nor DTensor and the compiler their
# caches. After some hundred cases a rank has 500 threads and takes twice the time.
_CASES = 40


@dataclass(frozen=True)
class Ending:
    """How a rank ended a case: exit code (None: did not end; below 0: a signal), standard error."""

    code: int | None
    stderr: str


class Rank:
    """A process that carries out cases; its standard error goes to a file."""

    def __init__(self, folder: Path) -> None:
        handle, name = tempfile.mkstemp(dir=folder)
        os.close(handle)
        self.stderr = Path(name)
        self.line, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=serve, args=(theirs, name))
        self.process.start()
        theirs.close()
        self.fit = True
        self.cases = 0

    def begin(self, case: Case) -> None:
        self.cases += 1
        os.truncate(self.stderr, 0)
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):  # a rank that has died says so when it is waited for
            self.line.send(case)

    def end(self) -> Ending:
        """Return how the rank has ended the case, without waiting for an answer."""
        code, answered = None, False
        if self.process.is_alive() and not self.line.poll():
            self._signal(signal.SIGUSR1)  # it writes where its threads are
            time.sleep(0.5)
            text = f"did not end; it was here:\n{self._read()}"
        else:
            try:
                code, answered = self.line.recv(), True
                text = self._read()
            except (EOFError, OSError):  # it exited, e.g. through its watchdog, or was killed
                self.process.join(timeout=10)
                code = self.process.exitcode
                text = f"ended its process: {self._read()}"
        self.fit = answered and code in _FIT_FOR_MORE
        if self.fit:
            self._signal(signal.SIGSTOP)
        return Ending(code, text)

    def stop(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.join(timeout=10)

    def _signal(self, number: signal.Signals) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)

    def _read(self) -> str:
        text = self.stderr.read_text(encoding="utf-8", errors="replace")
        # start and end of the error: between them a crash lists every thread
        return text if len(text) <= 8000 else f"{text[:4000]}\n...\n{text[-4000:]}"


_ranks: list[Rank] = []
_holders: list[socket.socket] = []  # of ports


@contextlib.contextmanager
def lend(count: int, *, fresh: bool = False) -> Iterator[Sequence[Rank]]:
    """Lend `count` ranks, running or fresh ones. A running rank has the same process each time."""
    if fresh:
        ranks = [Rank(_home()) for _ in range(count)]
        try:
            yield ranks
        finally:
            for rank in ranks:
                rank.stop()
        return
    if any(rank.cases >= _CASES for rank in _ranks[:count]):
        _stop_all()
    while len(_ranks) < count:
        _ranks.append(Rank(_home()))
    lent = _ranks[:count]
    for rank in lent:
        rank.fit = False  # until the case has ended well
    try:
        yield lent
    finally:
        if not all(rank.fit for rank in lent):
            # after a failure its peers may be in the middle of the case
            for rank in lent:
                rank.stop()
            del _ranks[:count]


def carry_out(case: Case, ranks: Sequence[Rank], *, timeout: float) -> list[Ending]:
    """Have `ranks` carry out the case together and return how each ended, within `timeout` seconds."""
    port = free_port()
    end = time.monotonic() + timeout
    for number, rank in enumerate(ranks):
        rank.begin(replace(case, rank=number, world_size=len(ranks), port=port))
        if number == 0 and len(ranks) > 1:
            _wait_until_it_listens(port, rank, end=min(end, time.monotonic() + _LISTENING))
    pending = {rank.line: rank for rank in ranks}
    endings: dict[Rank, Ending] = {}
    while pending and (left := end - time.monotonic()) > 0:
        for line in wait(list(pending), timeout=left):
            assert isinstance(line, Connection)
            rank = pending.pop(line)
            endings[rank] = rank.end()
            if not rank.fit:
                end = min(end, time.monotonic() + _GRACE)
    for rank in pending.values():
        endings[rank] = rank.end()
    return [endings[rank] for rank in ranks]


def _wait_until_it_listens(port: int, first: Rank, *, end: float) -> None:
    """Wait for the store of rank 0: a rank that connects too early loses a third of a second."""
    listening = f":{port:04X} "
    tables = [table for name in ("tcp", "tcp6") if (table := Path("/proc/net") / name).exists()]
    while tables and not first.line.poll() and first.process.is_alive() and time.monotonic() < end:
        if any(
            listening in line and line.split()[3] == "0A"
            for table in tables
            for line in table.read_text(encoding="ascii").splitlines()
        ):
            return
        time.sleep(0.002)


def start_server() -> None:
    """Start the fork server now, before other tests start it with fewer modules loaded."""
    forkserver.ensure_running()


def free_port() -> int:
    """Return a port for a server with SO_REUSEADDR; no other process gets it while this one runs."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    _holders.append(holder)
    return int(holder.getsockname()[1])


@functools.cache
def _home() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(_stop_all)  # which comes first
    return folder


def _stop_all() -> None:
    for rank in _ranks:
        rank.stop()
    _ranks.clear()
