"""The rendezvous client, with a bare socket as its server."""

import contextlib
import itertools
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.conftest import wait_for
from tests.unit.trainer.rendezvous.joining import (
    TIMEOUT,
    client,
    contract,
    next_round,
)
from trainer.config.exits import Exit, Fault
from trainer.rendezvous.client import RendezvousClient
from trainer.rendezvous.connection import connect
from trainer.rendezvous.messages import encode, proof

HEARTBEAT = encode("heartbeat", here=2)
PLACE = {"round": 3, "node": 1, "nodes": 2, "first_rank": 1, "world_size": 2}
START = encode("start", **PLACE, port=5)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.rendezvous.client._RETRY_INTERVAL", 0.1)


@contextlib.contextmanager
def joined(
    *first: bytes,
    once_ready: bytes = b"",
    heartbeats: bool = True,
    has_store: bool = False,
    key: str = "job\n",
) -> Iterator[tuple[RendezvousClient, threading.Event]]:
    """Yield a client whose server welcomes it and sends `first`, and a function to end the server."""
    gone = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):  # the client left
            connection.sendall(encode("challenge", nonce="0" * 32))
            join = json.loads(connection.recv(4096))
            ours = proof(key, "welcome", "0" * 32, join["nonce"])
            connection.sendall(encode("welcome", proof=ours, silence=TIMEOUT) + b"".join(first))
            connection.settimeout(0.1)
            while not gone.is_set():
                with contextlib.suppress(TimeoutError):
                    if b"ready" in connection.recv(4096):
                        connection.sendall(once_ready)
                if heartbeats:
                    connection.sendall(HEARTBEAT)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        port = listener.getsockname()[1]
        place = contract(1, nodes=2, port=port)
        member = client(
            place, open_connection=partial(connect, "127.0.0.1", port), has_store=has_store
        )
        member.start(deadline=time.monotonic() + 30)
        try:
            yield member, gone
        finally:
            member.leave(Exit.STOPPED)
            gone.set()
            server.join()


def test_a_silent_server_is_lost_within_the_bound() -> None:
    with joined(HEARTBEAT, heartbeats=False) as (member, _):
        event = wait_for(lambda: member.peer_lost, seconds=TIMEOUT * 2)
        assert "has been silent for 1." in event.reason
        assert event.silent


def test_all_that_comes_with_the_first_answer_counts() -> None:
    """After a short break of the link, the heartbeat and the loss of a peer arrive together."""
    lost = encode("peer_lost", reason="node 2 is gone", silent=False)
    with joined(HEARTBEAT + lost) as (member, _):
        assert wait_for(lambda: member.peer_lost).reason == "node 2 is gone"


def test_a_round_is_what_the_server_says() -> None:
    with joined(HEARTBEAT, once_ready=START) as (member, _):
        found = next_round(member)
        assert (found.number, found.node, found.port, found.address) == (3, 1, 5, "127.0.0.1")


@pytest.mark.parametrize(
    "wrong",
    [
        b"nonsense\n",
        b"x" * 10_000,
        encode("start", **(PLACE | {"first_rank": -1}), port=5),
        encode("peer_lost", reason="\x1b[2J", silent=True),
    ],
)
def test_a_server_that_sends_no_message_is_lost(wrong: bytes) -> None:
    with joined(HEARTBEAT, wrong) as (member, _):
        assert "is gone" in wait_for(lambda: member.peer_lost).reason


@pytest.mark.parametrize("said", [b"", encode("challenge", nonce="0" * 32)])
def test_a_server_that_resets_is_tried_again(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        port = listener.getsockname()[1]
        place = contract(1, nodes=2, port=port)
        member = client(place, open_connection=partial(connect, "127.0.0.1", port))
        member.start(deadline=time.monotonic() + 30)
        for _ in range(3):
            connection, _ = listener.accept()
            connection.sendall(said)
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.close()
        assert member.failure is None
        member.leave(Exit.STOPPED)


def test_a_server_without_the_secret_is_not_joined() -> None:
    with joined(HEARTBEAT, key="job\nanother") as (member, _):
        time.sleep(TIMEOUT / 2)
        assert not member.joined


@pytest.mark.parametrize(
    ("then", "code", "reason"),
    [
        ("server vanishes", Exit.PEER, "node 0 at .* is gone"),
        ("signal", Exit.STOPPED, "stopped"),
        ("time is up", Exit.PEER, "no answer .* store at 127.0.0.1:1: Connection refused; nodes"),
    ],
)
def test_a_store_that_does_not_answer_is_given_up(then: str, code: Exit, reason: str) -> None:
    """A process group would wait for its full timeout, even after the server is lost."""
    starting = encode("start", **PLACE, port=1)
    with joined(HEARTBEAT, once_ready=starting, has_store=True) as (member, gone):
        begun = time.monotonic()
        if then == "server vanishes":
            threading.Timer(0.4, gone.set).start()

        def turn() -> None:
            if then == "signal" and time.monotonic() > begun + 0.4:
                raise Fault(Exit.STOPPED, "stopped")

        with pytest.raises(Fault, match=reason) as caught:
            member.next_round(
                clean=True,
                open_port=lambda: 0,
                deadline=begun + (0.4 if then == "time is up" else 30),
                turn=turn,
            )
        assert caught.value.code == code
        assert 0.3 < time.monotonic() - begun < 10


def test_a_store_that_answers_late_is_waited_for() -> None:
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        starting = encode("start", **PLACE, port=store.getsockname()[1])
        with joined(HEARTBEAT, once_ready=starting, has_store=True) as (member, _):
            threading.Timer(0.4, store.listen).start()
            begun = time.monotonic()
            next_round(member)
            assert time.monotonic() - begun > 0.3


def test_a_name_that_does_not_resolve_yet_is_waited_for_and_reported() -> None:
    def fail() -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    member = client(contract(1, nodes=2, port=1), open_connection=fail)
    member.start(deadline=time.monotonic() + 0.3)
    with pytest.raises(Fault, match="Name or service not known") as caught:
        next_round(member)
    assert caught.value.code == Exit.PEER


def test_a_round_that_ends_before_its_store_answers_is_followed_by_another() -> None:
    gone = encode("start", **PLACE, port=1) + encode("membership_changed", reason="x", lost=True)
    with joined(HEARTBEAT, once_ready=gone, has_store=True) as (member, _):
        ports: Iterator[int] = iter([1])  # the next would be that of another round
        with pytest.raises(StopIteration):
            member.next_round(
                clean=True,
                open_port=lambda: next(ports),
                deadline=time.monotonic() + 30,
                turn=lambda: None,
            )


def test_only_a_server_with_the_secret_ends_the_run() -> None:
    with joined(encode("finished"), key="job\nanother") as (member, _):
        time.sleep(TIMEOUT / 2)
        assert member.failure is None
    with joined(encode("finished")) as (member, _):
        assert wait_for(lambda: member.failure).code == Exit.DONE


def test_problems_that_take_turns_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    """As while node 0's machine is off: no answer at first, and no route once ARP has failed."""
    problems = itertools.cycle([TimeoutError("timed out"), OSError("No route to host")])

    def fail() -> socket.socket:
        raise next(problems)

    caplog.set_level(logging.INFO)
    member = client(contract(1, nodes=2, port=1), open_connection=fail)
    member.start(deadline=time.monotonic() + 2)
    with pytest.raises(Fault, match="could not join the master"):
        next_round(member)
    problems_logged = [one.getMessage().partition("(")[2] for one in caplog.records]
    assert problems_logged == ["timed out)", "No route to host)"]
