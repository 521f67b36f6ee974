"""Forks processes on request, in the process that has imported what they need (fork_server.py asks).

It has one thread, because the threads of a process are lost in a fork while their locks stay held. It
never touches a device, because a GPU driver in use does not survive a fork.

    what = serve(connection)        # returns in each forked process: "rank" or "store"
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from trainer.config.exits import STOP_SIGNALS
from trainer.launcher.orphans import die_with_parent

_PR_SET_NAME = 15  # linux/prctl.h
_CHUNK = 65536


def serve(connection: socket.socket) -> str:
    """Fork at each request and report each end. Returns in a forked process; exits with the launcher."""
    wakeup, on_signal = os.pipe()  # readable after a SIGCHLD
    os.set_blocking(on_signal, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(on_signal)
    inputs: list[socket.socket | int] = [connection, wakeup]
    running: set[int] = set()
    while True:
        ready, _, _ = select.select(inputs, [], [])
        if wakeup in ready:
            os.read(wakeup, _CHUNK)
            while running:
                ended, status = os.waitpid(-1, os.WNOHANG)
                if ended == 0:
                    break
                running.discard(ended)
                send(connection, ended=ended, code=os.waitstatus_to_exitcode(status))
        if connection in ready:
            request, files = _receive(connection)
            if not request:
                _end(running)
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for file in (wakeup, on_signal):
                    os.close(file)
                _become(request, files)
                die_with_parent(server)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
                return str(request["fork"])
            running.add(pid)
            for file in files:
                os.close(file)
            send(connection, pid=pid)


def send(connection: socket.socket, **message: object) -> None:
    """Send an answer to the launcher."""
    with contextlib.suppress(OSError):  # the launcher is gone, and this process ends soon
        connection.sendall(json.dumps(message).encode() + b"\n")


def name_process(name: str) -> None:
    """Name this process for `ps` and `top`; else all would be shown with the server's command line."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _receive(connection: socket.socket) -> tuple[dict[str, object], list[int]]:
    """Return a request and the files that came with it; an empty request if the launcher is gone."""
    data, files, _, _ = socket.recv_fds(connection, _CHUNK, 2)
    while data and not data.endswith(b"\n"):
        more = connection.recv(_CHUNK)
        data = data + more if more else b""
    return (json.loads(data), files) if data else ({}, files)


def _end(running: set[int]) -> NoReturn:
    """End, and all forked processes first, so that none outlives this one."""
    for pid in running:
        os.kill(pid, signal.SIGKILL)  # not waited for yet, so the pid still belongs to it
    for pid in running:
        os.waitpid(pid, 0)
    os._exit(0)


def _become(request: dict[str, object], files: list[int]) -> None:
    """Set the session, signal handlers, files and variables that a new process would have."""
    os.setsid()
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, file in enumerate(files, start=1):
        os.dup2(file, target)
        os.close(file)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else all ranks would draw the same numbers
    environment = request.get("environment")
    if isinstance(environment, dict):
        os.environ.clear()
        os.environ.update(environment)
        name_process(f"rank {os.environ.get('RANK', '')}")
    else:
        name_process(str(request["fork"]))
