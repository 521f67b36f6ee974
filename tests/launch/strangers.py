"""What a stranger who can reach the rendezvous port may send. A job must go on during the attack.

python -m tests.launch.strangers HOST PORT SECONDS      # attack a port
"""

import contextlib
import json
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from tests.conftest import in_thread
from trainer.rendezvous.messages import encode, proof

Address = tuple[str, int]

DRIPPING = 5000  # connections
_NONCE = "0" * 32
_FILES = 3 * DRIPPING


def connect(to: Address, *, timeout: float = 2) -> socket.socket:
    """Connect, so that other tests can still listen at the local port that is used."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.settimeout(timeout)
    connection.connect(to)
    connection.settimeout(0.5)
    return connection


def _send(to: Address, *lines: bytes) -> None:
    """Send all lines at once, and read until the other end closes the connection."""
    with connect(to) as connection:
        connection.sendall(b"".join(lines))
        while connection.recv(65536):
            pass


def _join(**fields: object) -> bytes:
    known = {"number": 1, "ranks": 1, "nonce": _NONCE, "proof": "0" * 64}
    return json.dumps({"kind": "join", **known, **fields}).encode() + b"\n"


def huge_numbers(to: Address) -> None:
    """Ranks and numbers that no job has; Python refuses to read one of them."""
    for value in (10**12, -1, 0, 1.5, True, "1", None, [1]):
        _send(to, _join(ranks=value))
        _send(to, _join(number=value))
    _send(to, _join(ranks=0).replace(b'"ranks": 0', b'"ranks": ' + b"9" * 4300))


def wrong_secret(to: Address) -> None:
    """A proof that is made with another secret, job or attempt."""
    for key in ("job\n", "job\nguess", "muster\n", "former attempt\nsecret"):
        with connect(to) as connection:
            challenge = json.loads(connection.recv(4096))["nonce"]
            wrong = proof(key, "join", challenge, _NONCE, 1, 1)
            connection.sendall(_join(proof=wrong) + encode("ready", clean=True, port=1))
            connection.recv(4096)


def replayed(to: Address) -> None:
    """The proof of one connection, sent on another."""
    with connect(to) as first, connect(to) as second:
        challenge = json.loads(first.recv(4096))["nonce"]
        right_once = proof("job\nsecret", "join", challenge, _NONCE, 1, 1)
        second.sendall(_join(proof=right_once))
        second.recv(4096)


def joins_and_leaves(to: Address) -> None:
    """Several messages in one packet, from a node that does not exist."""
    leave = encode("leave", done=True)
    _send(to, _join(), leave, _join())
    _send(to, leave)
    _send(to, encode("ready", clean=False, port=0), leave)


def forged_events(to: Address) -> None:
    """What only the server sends."""
    _send(to, encode("peer_lost", reason="\x1b[2J all is lost", silent=False))
    _send(to, encode("peer_finished", reason="done", stopped=False, over=True))
    _send(to, encode("finished"))


def escape_sequences(to: Address) -> None:
    """Text for the terminal on which the log is read."""
    _send(to, _join(number="\x1b]0;owned\x07", address="\x1b[2J"))


def random_bytes(to: Address) -> None:
    """Random bytes, and another protocol."""
    _send(to, random.randbytes(10_000))  # noqa: S311
    _send(to, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    _send(to, b"[" * 50_000 + b"\n")


def no_line_end(to: Address) -> None:
    """100 MB without the end of a line."""
    with connect(to) as connection:
        for _ in range(100):
            connection.sendall(b"x" * 1_000_000)


ATTACKS: list[Callable[[Address], None]] = [
    huge_numbers,
    wrong_secret,
    replayed,
    joins_and_leaves,
    forged_events,
    escape_sequences,
    random_bytes,
    no_line_end,
]


@contextlib.contextmanager
def dripping(to: Address) -> Iterator[None]:
    """Hold connections open and send a byte on some of them at times; replace lost connections."""
    held: list[socket.socket] = []

    def drip(stop: threading.Event) -> None:
        while not stop.wait(0.05):
            with contextlib.suppress(OSError):
                while len(held) < DRIPPING and not stop.is_set():
                    held.append(connect(to))
            for connection in random.sample(held, min(100, len(held))):
                try:
                    connection.send(b"{")
                except OSError:
                    connection.close()
                    held.remove(connection)

    raise_file_limit(_FILES)
    try:
        with in_thread(drip):
            yield
    finally:
        for connection in held:
            connection.close()


def raise_file_limit(files: int) -> None:
    """Allow this process so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, hard), hard))


@contextlib.contextmanager
def attacking(to: Address, *, counted: dict[str, int]) -> Iterator[None]:
    """Run one attack after the other until the block ends, and count them."""

    def attack(stop: threading.Event) -> None:
        while not stop.wait(0.02):
            for one in ATTACKS:
                with contextlib.suppress(OSError, ValueError):  # cut off, as expected
                    one(to)
                counted[one.__name__] = counted.get(one.__name__, 0) + 1

    with in_thread(attack):
        yield


if __name__ == "__main__":
    where, done = (sys.argv[1], int(sys.argv[2])), dict[str, int]()
    with attacking(where, counted=done), dripping(where):
        time.sleep(float(sys.argv[3]))
    print(done)
