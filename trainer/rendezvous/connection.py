"""TCP connections between nodes: how to open one, and send and receive lines.

    connection = Connection(connect("job-0.job", 29500))
    connection.send(encode("heartbeat"))

Only `connect` and `wait` block.
"""

import contextlib
import os
import select
import selectors
import socket
import time

from trainer.rendezvous.messages import MAX_LINE

_MAX_UNSENT = 1 << 20  # bytes; a peer that leaves more unread counts as gone
_CONNECT_TIMEOUT = 2  # seconds; TCP repeats its first packet after one second
_RETRY_INTERVAL = 0.2  # seconds; an address that refused may soon listen


def connect(host: str, port: int) -> socket.socket:
    """Return a connection to the address of `host` that answers first.

    All addresses are tried at once: for a while the name of a new pod also resolves to the pod that it
    replaced, whose address does not answer. An address that refuses is retried while others have not
    answered yet. Raises OSError if all refuse, or after 2 s; the caller should then resolve the name
    again.
    """
    problem: OSError = TimeoutError("timed out")
    end = time.monotonic() + _CONNECT_TIMEOUT
    to_try = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    with contextlib.ExitStack() as sockets, selectors.DefaultSelector() as pending:
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
                    pending.register(attempt, selectors.EVENT_WRITE, (attempt, candidate))
            to_try = []
            for key, _ in pending.select(_RETRY_INTERVAL) if pending.get_map() else ():
                attempt, candidate = key.data
                pending.unregister(attempt)
                to_try.append(candidate)
                code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    connected: socket.socket = attempt.dup()  # this block closes the others
                    connected.setblocking(True)
                    return connected
                problem = OSError(code, os.strerror(code))
            if not pending.get_map() or time.monotonic() >= end:
                raise problem
            if to_try:
                time.sleep(_RETRY_INTERVAL)


class Connection:
    """Lines over a socket. `last_received` is a monotonic time; `closed` is final."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        with contextlib.suppress(OSError):  # the one within this process is not TCP
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.last_received = time.monotonic()
        self.closed = False
        self.unsent = b""
        self._incomplete = b""

    def send(self, lines: bytes) -> None:
        """Send all unsent lines and these; keep what the peer does not read. Too much of it closes."""
        self.unsent += lines
        try:
            while self.unsent and not self.closed:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            self.closed = len(self.unsent) > _MAX_UNSENT
        except OSError:
            self.closed = True

    def wait(self, seconds: float) -> None:
        """Wait for something to receive."""
        poll = select.poll()  # select cannot wait for descriptors above 1,023
        poll.register(self.socket, select.POLLIN)
        poll.poll(seconds * 1000)

    def receive(self) -> list[bytes]:
        """Return lines that have arrived, without waiting, up to one buffer. A long line closes."""
        if self.closed:
            return []
        try:
            data = self.socket.recv(MAX_LINE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return []
        self.last_received = time.monotonic()
        *lines, self._incomplete = (self._incomplete + data).split(b"\n")
        self.closed = len(self._incomplete) > MAX_LINE
        return lines

    def close(self) -> None:
        """Close the connection; the peer still receives what was sent."""
        self.closed = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self.socket.close()
