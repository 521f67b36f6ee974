"""Where a node's ranks come from: a process that has imported what they need, and forks them.

To import torch and the trainer takes a rank seconds of a core, and each rank of a node the same, at each
restart anew. Forked ranks begin with it done, and share the memory that it takes. The server is forked
itself before there are threads, which a fork would lose with whatever they hold, and it never touches a
device: a driver that was used before a fork is of no use after it.

    server = begin(modules)     # None: this is a rank, to be run to its end
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import NoReturn

from trainer.config.exits import Exit, Fault
from trainer.launcher.orphans import die_with

_PR_SET_NAME = 15  # linux/prctl.h
_BOUND = 60.0  # seconds for a fork, which takes milliseconds
_END = 5.0  # seconds for the server to end
_LENGTH = 8  # bytes, in which a request says how long it is
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Forked:
    """A rank's process: as much of subprocess.Popen as torch's agent asks for."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit code, below 0 for a signal, or None while the process is there."""
        return self._server.ended(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises TimeoutExpired after `timeout` seconds."""
        end = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while (code := self.poll()) is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(0.01)
        return code


class ForkServer:
    """The launcher's end of it."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._line = line
        self._pid = pid
        self._rest = b""
        self._born: list[int] = []
        self._codes: dict[int, int] = {}
        self._gone = False
        self._one_at_a_time = threading.Lock()

    def fork(self, environment: Mapping[str, str], *, stdout: int, stderr: int) -> Forked:
        """Have a rank forked, with all of its environment and the files it writes to.

        Raises Fault(71) when there is no server any more, or none that answers.
        """
        request = json.dumps(dict(environment)).encode()
        with self._one_at_a_time:
            with contextlib.suppress(OSError):  # told of below
                self._line.settimeout(_BOUND)
                length = len(request).to_bytes(_LENGTH, "big")
                socket.send_fds(self._line, [length], [stdout, stderr])
                self._line.sendall(request)
            end = time.monotonic() + _BOUND
            while not self._born:
                left = end - time.monotonic()
                if self._gone or left <= 0:
                    raise Fault(Exit.MACHINE, "the process that forks the ranks does not answer")
                select.select([self._line], [], [], left)
                self._read()
            return Forked(self, self._born.pop())

    def ended(self, pid: int) -> int | None:
        """Return how a process that was forked has ended, or None while it is there."""
        with self._one_at_a_time:
            self._read()
            if self._gone:  # and its ranks with it (`die_with`)
                return self._codes.get(pid, -signal.SIGKILL)
            return self._codes.get(pid)

    def close(self) -> None:
        """End it, and what ranks there still are, and wait until it is gone."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        end = time.monotonic() + _END
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                time.sleep(0.005)

    def _read(self) -> None:
        """Take in what the server has said."""
        self._line.setblocking(False)
        try:
            while piece := self._line.recv(65536):
                self._rest += piece
            self._gone = True
        except BlockingIOError:
            pass
        except OSError:
            self._gone = True
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            what, pid, code = line.split()
            if what == b"born":
                self._born.append(int(pid))
                self._codes.pop(int(pid), None)  # a former process had this number
            else:
                self._codes[int(pid)] = int(code)


def begin(modules: Iterable[str]) -> ForkServer | None:
    """Import `modules` and fork the server; return None in each rank that it has forked.

    To be called while there is one thread. A signal that comes meanwhile is handled at the end: raised
    while a module is imported, it may be taken for a reason not to have that module.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # what is there now stays, and to look through it again and again would copy its pages
    gc.enable()
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair()
    launcher = os.getpid()
    if pid := os.fork():
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return ForkServer(ours, pid)
    ours.close()
    try:
        die_with(launcher)
        _call_this("fork server")
        _serve(theirs)
    except BaseException:  # noqa: BLE001  # nothing of this process is the launcher's to see
        os._exit(1)
    theirs.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return None


def _serve(line: socket.socket) -> None:
    """Fork ranks as `line` asks for them and tell of their ends; return in a rank."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    heard: list[socket.socket | int] = [line, woken]
    while True:
        ready, _, _ = select.select(heard, [], [])
        if woken in ready:
            os.read(woken, 65536)
            _tell_of_the_ended(line)
        if line in ready:
            environment, files = _request(line)
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for file in (woken, wakes):
                    os.close(file)
                _become_a_rank(environment, files, server)
                return
            for file in files:
                os.close(file)
            line.sendall(f"born {pid} 0\n".encode())


def _tell_of_the_ended(line: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            line.sendall(f"ended {pid} {os.waitstatus_to_exitcode(status)}\n".encode())


def _request(line: socket.socket) -> tuple[dict[str, str], list[int]]:
    """Return a rank's environment, and its standard output and error; ends with the launcher."""
    length, files, _, _ = socket.recv_fds(line, _LENGTH, 2)
    text = b""
    size = int.from_bytes(length, "big")
    while length and len(text) < size and (piece := line.recv(size - len(text))):
        text += piece
    if not length or len(text) < size:
        _end()
    return json.loads(text), list(files)


def _end() -> NoReturn:
    os._exit(0)


def _become_a_rank(environment: dict[str, str], files: list[int], server: int) -> None:
    """Take on what a new process would have: its own session, files, variables, and signals."""
    os.setsid()
    for number in (*_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for to, file in enumerate(files, start=1):
        os.dup2(file, to)
        os.close(file)
    os.environ.clear()
    os.environ |= environment
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # what each process draws by itself is its own
    _call_this(f"rank {environment.get('RANK', '')}")
    die_with(server)


def _call_this(name: str) -> None:
    """Name this process for `ps` and `top`, where all else of it is the launcher's."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
