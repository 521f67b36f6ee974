"""TCP connections between nodes: how one is opened, and the lines of JSON that go over it.

    connection = Connection(connect("job-0.job", 29500))
    connection.send("heartbeat")

Nothing blocks but `connect`. What arrives is only ever parsed as JSON.
"""

import contextlib
import json
import os
import select
import socket
import time
from typing import Any

Message = dict[str, Any]

_MAX_LINE = 65536  # bytes; no node sends a longer line
_CONNECT_TIMEOUT = 2  # seconds; TCP repeats its first packet after one
_RETRY_INTERVAL = 0.2  # seconds; an address that refused may be about to listen


def connect(host: str, port: int) -> socket.socket:
    """Return a connection to the address of `host` that answers first.

    All addresses are tried at once: for a while the name of a new pod also resolves to the pod that it
    replaced, whose address does not answer. An address that refuses is tried again while another has
    not answered. Raises OSError when all refuse, or after 2 s; resolve the name again then.
    """
    problem: OSError = TimeoutError("timed out")
    end = time.monotonic() + _CONNECT_TIMEOUT
    to_try = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    pending = {}
    with contextlib.ExitStack() as sockets:
        while True:
            for candidate in to_try:
                family, kind, protocol, _, address = candidate
                try:
                    attempt = sockets.enter_context(socket.socket(family, kind, protocol))
                    attempt.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        attempt.connect(address)
                except OSError as error:  # no route
                    problem = error
                else:
                    pending[attempt] = candidate
            to_try = []
            for attempt in select.select([], pending, [], _RETRY_INTERVAL)[1] if pending else ():
                to_try.append(pending.pop(attempt))
                code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    connected = attempt.dup()  # this block closes the others
                    connected.setblocking(True)
                    return connected
                problem = OSError(code, os.strerror(code))
            if not pending or time.monotonic() >= end:
                raise problem
            if to_try:
                time.sleep(_RETRY_INTERVAL)


class Connection:
    """Messages over a socket. `last_received` is a monotonic time; `closed` is final."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.last_received = time.monotonic()
        self.closed = False
        self._incomplete = b""

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self.socket.fileno()

    def send(self, kind: str, **fields: object) -> None:
        """Send a message. A peer that does not take all of it at once counts as closed."""
        text = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        try:
            if self.socket.send(text) != len(text):
                self.closed = True
        except OSError:  # BlockingIOError too: a peer that leaves so much unread is gone
            self.closed = True

    def receive(self) -> list[Message]:
        """Return the messages that have arrived, without waiting."""
        while not self.closed:
            try:
                data = self.socket.recv(_MAX_LINE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data or len(self._incomplete) > _MAX_LINE:
                self.closed = True
                break
            self.last_received = time.monotonic()
            self._incomplete += data
        *lines, self._incomplete = self._incomplete.split(b"\n")
        messages = [_parse(line) for line in lines]
        if None in messages:
            self.closed = True
        return [message for message in messages if message is not None]

    def close(self) -> None:
        """Close the connection; the peer still receives what was sent."""
        self.closed = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self.socket.close()


def _parse(line: bytes) -> Message | None:
    """Return the message in a line, or None when it is not one."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("kind"), str) else None
