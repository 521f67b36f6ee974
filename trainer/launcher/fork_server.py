"""A process that has imported what ranks need, and forks them: a rank then starts in milliseconds.

Importing torch and the trainer costs each rank seconds of a core, at every start and restart; forked
ranks share the imports and their memory. The server itself is forked before there are threads, since a
fork loses them with the locks they hold, and never touches a device, since a GPU driver in use does not
survive a fork.

    server = start(modules, run_rank=train)
    process = server.fork(environment, stdout=1, stderr=2)

Each message is one packet. To the server: one byte with three files, of which the first holds the rank's
environment as JSON. From it: "started PID 0" and "ended PID CODE".
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
from collections.abc import Callable, Iterable, Mapping

from trainer.config.exits import Exit, Fault
from trainer.launcher.orphans import die_with_parent

_PR_SET_NAME = 15  # linux/prctl.h
_FORK_TIMEOUT = 60.0  # seconds; it takes milliseconds
_CLOSE_TIMEOUT = 5.0  # seconds
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def start(modules: Iterable[str], *, run_rank: Callable[[], object]) -> "ForkServer":
    """Import `modules` and fork the server. Each forked process calls `run_rank`, which must exit.

    Must be called while there is one thread. Signals wait until the imports are done: an exception
    raised inside an import may be taken for a missing module.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a collection would touch, and so copy, the pages that ranks share
    gc.enable()
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = os.getpid()
    if pid := os.fork():
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return ForkServer(ours, pid)
    ours.close()
    try:
        die_with_parent(launcher)
        _name_process("fork server")
        _serve(theirs)
    except BaseException:  # noqa: BLE001  # this process must not run the launcher's code
        os._exit(1)
    theirs.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    run_rank()
    raise AssertionError("run_rank returned")


class ForkServer:
    """The launcher's side."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._pid = pid
        self._started: list[int] = []
        self._codes: dict[int, int] = {}
        self._gone = False
        self._lock = threading.Lock()

    def fork(self, environment: Mapping[str, str], *, stdout: int, stderr: int) -> "ForkedProcess":
        """Fork a rank with this environment and output. Raises Fault(71) when the server is gone."""
        with self._lock, os.fdopen(os.memfd_create("environment"), "wb") as file:
            file.write(json.dumps(dict(environment)).encode())
            file.flush()
            with contextlib.suppress(OSError):  # seen by _receive
                socket.send_fds(self._connection, [b"f"], [file.fileno(), stdout, stderr])
            end = time.monotonic() + _FORK_TIMEOUT
            while not self._started:
                if self._gone or time.monotonic() >= end:
                    raise Fault(Exit.MACHINE, "the process that forks the ranks does not answer")
                self._receive(timeout=1)
            return ForkedProcess(self, self._started.pop())

    def exit_code(self, pid: int) -> int | None:
        """Return how a forked process has ended, or None while it runs."""
        with self._lock:
            self._receive(timeout=0)
            # The processes die with the server.
            return self._codes.get(pid, -signal.SIGKILL if self._gone else None)

    def close(self) -> None:
        """End the server and all that it has forked."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        end = time.monotonic() + _CLOSE_TIMEOUT
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                time.sleep(0.005)

    def _receive(self, *, timeout: float) -> None:
        """Handle all messages that have arrived; wait up to `timeout` seconds for the first."""
        while not self._gone and select.select([self._connection], [], [], timeout)[0]:
            timeout = 0
            try:
                message = self._connection.recv(100)
            except OSError:
                message = b""
            if not message:
                self._gone = True
                return
            event, pid, code = message.split()
            if event == b"started":
                self._started.append(int(pid))
                self._codes.pop(int(pid), None)  # an earlier process had this number
            else:
                self._codes[int(pid)] = int(code)


class ForkedProcess:
    """A rank's process: the part of subprocess.Popen that torch's agent uses."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._server.exit_code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises TimeoutExpired after `timeout` seconds."""
        end = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while (code := self.poll()) is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(0.01)
        return code


def _serve(connection: socket.socket) -> None:
    """Fork a rank at each request and report each end; return in a rank, exit with the launcher."""
    wakeup, on_signal = os.pipe()  # readable after a SIGCHLD
    os.set_blocking(on_signal, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(on_signal)
    inputs: list[socket.socket | int] = [connection, wakeup]
    while True:
        ready, _, _ = select.select(inputs, [], [])
        if wakeup in ready:
            os.read(wakeup, 65536)
            _report_ended(connection)
        if connection in ready:
            request, files, _, _ = socket.recv_fds(connection, 1, 3)
            if not request:
                os._exit(0)
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                os.close(wakeup)
                os.close(on_signal)
                _become_rank(*files)
                die_with_parent(server)
                return
            for file in files:
                os.close(file)
            connection.send(f"started {pid} 0".encode())


def _report_ended(connection: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection.send(f"ended {pid} {os.waitstatus_to_exitcode(status)}".encode())


def _become_rank(environment: int, stdout: int, stderr: int) -> None:
    """Take the session, signal handlers, files and variables that a new process would have."""
    os.setsid()
    for number in (*_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, file in enumerate((stdout, stderr), start=1):
        os.dup2(file, target)
        os.close(file)
    os.environ.clear()
    with os.fdopen(environment, "rb") as variables:
        variables.seek(0)
        os.environ.update(json.load(variables))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else all ranks draw the same numbers
    _name_process(f"rank {os.environ.get('RANK', '')}")


def _name_process(name: str) -> None:
    """Name this process for `ps` and `top`, which show the launcher's command line for it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
