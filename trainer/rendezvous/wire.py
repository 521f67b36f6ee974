"""Lines of JSON over one TCP connection: how the agents of a job talk to each other.

Nothing here blocks, and what comes from the other end is never more than data.
"""

import contextlib
import json
import socket
import time
from typing import Any

Message = dict[str, Any]

_LONGEST = 65536  # bytes in a line; what is longer comes from no agent


class Line:
    """One connection. `heard` is when something last came in, `closed` whether nothing will any more."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.heard = time.monotonic()
        self.closed = False
        self._rest = b""

    def fileno(self) -> int:
        """Return what a selector wants to know of it."""
        return self.socket.fileno()

    def send(self, kind: str, **fields: object) -> None:
        """Send a message, or mark the line closed when it does not go out."""
        text = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        try:
            if self.socket.send(text) != len(text):
                self.closed = True
        except OSError:  # BlockingIOError too: whoever leaves this much unread is not there
            self.closed = True

    def receive(self) -> list[Message]:
        """Return the messages that have come in; `closed` is set after the last one."""
        while not self.closed:
            try:
                piece = self.socket.recv(_LONGEST)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            if not piece or len(self._rest) > _LONGEST:
                self.closed = True
                break
            self.heard = time.monotonic()
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        messages = [_parse(line) for line in lines]
        if None in messages:
            self.closed = True
        return [message for message in messages if message is not None]

    def close(self) -> None:
        """End the connection; what was sent still arrives."""
        self.closed = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self.socket.close()


def _parse(line: bytes) -> Message | None:
    """Return the message of a line, or None when it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("kind"), str) else None
