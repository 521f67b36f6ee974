"""The launcher's side of trainer/rank_server.py, which has imported torch and forks the ranks.

Importing torch and the trainer costs each rank seconds of processor time, at every start and restart.
Forked ranks share the imports and their memory. The launcher itself imports neither.

    server = ForkServer()
    facts = server.facts()                  # the settings that the launcher needs, checked
    process = server.fork(environment, stdout=1, stderr=2)
    pid, port = server.fork_store()

Each message is a line of JSON, over a socket between the two.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from trainer.config.exits import Exit, Fault

_FORK_TIMEOUT = 60.0  # seconds; a fork takes milliseconds
_CLOSE_TIMEOUT = 5.0  # seconds; a process that waits for a device cannot be killed at once
_CHUNK = 65536


class ForkServer:
    """Starts the server process. Its ranks die with it, and it dies with the launcher."""

    def __init__(self, module: str = "trainer.rank_server") -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the launcher
            )
        self._socket = ours
        self._incomplete = b""
        self._gone = False
        self._has_forked = False
        self._answers: list[dict[str, Any]] = []
        self._codes: dict[int, int] = {}

    def facts(self) -> dict[str, Any]:
        """Wait until the settings are checked; return those the launcher needs. Raises Fault."""
        facts = self._prepared("checks the settings")
        if "fault" in facts:
            raise Fault(Exit(facts["fault"]), facts["message"])
        return facts

    def wait_until_imported(self) -> None:
        """Wait until torch is imported; a slow disk may take long. Raises Fault(70)."""
        self._prepared("imports torch")

    def fork(self, environment: Mapping[str, str], *, stdout: int, stderr: int) -> "ForkedProcess":
        """Fork a rank with this environment and output. Raises Fault(70) if the server is gone."""
        request = json.dumps({"fork": "rank", "environment": dict(environment)})
        with contextlib.suppress(OSError):  # noticed because no answer comes
            sent = socket.send_fds(self._socket, [request.encode()], [stdout, stderr])
            self._socket.sendall(request.encode()[sent:] + b"\n")
        return ForkedProcess(self, self._started()["pid"])

    def fork_store(self) -> tuple["ForkedProcess", int]:
        """Fork a process with a new store; return it and the store's port. Raises Fault(70)."""
        with contextlib.suppress(OSError):
            self._socket.sendall(b'{"fork": "store"}\n')
        answers = self._started() | self._started()  # the server's and the store's, in any order
        return ForkedProcess(self, answers["pid"]), answers["port"]

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a forked process, or None while it runs."""
        self._receive(timeout=0)
        # The processes die with the server.
        return self._codes.get(pid, -signal.SIGKILL if self._gone else None)

    def close(self) -> None:
        """End the server and all processes it has forked, and wait until they have ended."""
        if self._has_forked:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._socket.shutdown(socket.SHUT_WR)
                self._process.wait(_CLOSE_TIMEOUT)
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _prepared(self, task: str) -> dict[str, Any]:
        """Wait, without a limit, for what the server does before it forks. Raises Fault(70)."""
        answer = self._answer(timeout=float("inf"))
        if answer is None:
            raise Fault(Exit.CODE, f"the process that {task} ended with {self._process.wait()}")
        return answer

    def _started(self) -> dict[str, Any]:
        self._has_forked = True
        answer = self._answer(timeout=_FORK_TIMEOUT)
        if self._gone:
            raise Fault(Exit.CODE, "the process that forks the ranks was killed")
        if answer is None:
            raise Fault(Exit.MACHINE, "the process that forks the ranks does not answer")
        return answer

    def _answer(self, *, timeout: float) -> dict[str, Any] | None:
        """Return the next answer; None if the server is gone or after `timeout` seconds."""
        end = time.monotonic() + timeout
        while not self._answers and not self._gone and time.monotonic() < end:
            self._receive(timeout=1)
        return self._answers.pop(0) if self._answers else None

    def _receive(self, *, timeout: float) -> None:
        """Read the messages that have arrived; wait up to `timeout` seconds for the first."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not self._gone and poll.poll(timeout * 1000):
            timeout = 0
            try:
                data = self._socket.recv(_CHUNK)
            except OSError:
                data = b""
            self._gone = not data
            *lines, self._incomplete = (self._incomplete + data).split(b"\n")
            for message in map(json.loads, lines):
                if "ended" in message:
                    self._codes[message["ended"]] = message["code"]
                else:
                    self._codes.pop(message.get("pid"), None)  # of an earlier process with this pid
                    self._answers.append(message)


class ForkedProcess:
    """A forked process, with the part of subprocess.Popen that is used here."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._server.exit_code(self.pid)
