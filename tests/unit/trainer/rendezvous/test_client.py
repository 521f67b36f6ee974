"""The rendezvous client, against a bare socket that sends what a server might."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.trainer.rendezvous.test_server import TIMEOUT, wait_for
from trainer.config.contract import resolve
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.rendezvous.client import RendezvousClient
from trainer.rendezvous.torch_handler import TorchRendezvousHandler

HEARTBEAT = {"kind": "heartbeat", "here": 2}
START = {"kind": "start", "number": 3, "rank": 1, "nodes": ["a", "b"], "ranks": [1, 1], "store": 5}


@contextlib.contextmanager
def serving(
    *first: dict[str, Any], heartbeats: bool = True
) -> Iterator[tuple[tuple[str, int], threading.Event]]:
    """Yield the address of a server that answers with `first`, then heartbeats, and what ends it."""
    gone = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):  # the client left
            connection.recv(1000)
            connection.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in first))
            while not gone.wait(0.1):
                if heartbeats:
                    connection.sendall(json.dumps(HEARTBEAT).encode() + b"\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        try:
            yield listener.getsockname(), gone
        finally:
            gone.set()
            server.join()


@contextlib.contextmanager
def joined(
    *first: dict[str, Any], heartbeats: bool = True
) -> Iterator[tuple[RendezvousClient, threading.Event]]:
    """Yield a client that has joined such a server, and what ends the server."""
    with serving(*first, heartbeats=heartbeats) as (address, gone):
        client = RendezvousClient(*address, job="job", ranks=1, peer_timeout=TIMEOUT)
        try:
            client.join(0, deadline=time.monotonic() + 30, own_address="me")
            yield client, gone
        finally:
            client.leave(Exit.STOPPED)


def test_a_silent_server_is_lost_within_the_bound() -> None:
    with joined(HEARTBEAT, heartbeats=False) as (client, _):
        event = wait_for(lambda: client.peer_lost, seconds=TIMEOUT * 1.5)
        assert "has been silent for 1." in event.reason
        assert event.silent


def test_all_that_comes_with_the_first_answer_counts() -> None:
    """A link that was away for a moment brings the heartbeat and the start of the round together."""
    with joined(HEARTBEAT, START) as (client, _):
        found = client.next_round(deadline=time.monotonic() + 30, clean=True, min_nodes=2)
        assert (found.number, found.rank, found.store) == (3, 1, 5)


@pytest.mark.parametrize(
    ("then", "code", "reason"),
    [
        ("server vanishes", Exit.PEER, "the rendezvous at .* is gone"),
        ("client leaves", Exit.STOPPED, "stopped"),
        ("time is up", Exit.PEER, "no answer .* store at 127.0.0.1:1: Connection refused; nodes"),
    ],
)
def test_a_store_that_does_not_answer_is_given_up(then: str, code: Exit, reason: str) -> None:
    """torch's client would wait for 30 s and more, even after the server is lost."""
    with joined(HEARTBEAT) as (client, gone):
        if then == "server vanishes":
            threading.Timer(0.7, gone.set).start()
        if then == "client leaves":
            threading.Timer(0.7, client.leave, (Exit.STOPPED,)).start()
        begun = time.monotonic()
        with pytest.raises(Fault, match=reason) as caught:
            client.wait_for_port(1, deadline=begun + (0.6 if then == "time is up" else 30))
        assert caught.value.code == code
        assert 0.5 < time.monotonic() - begun < 10


def test_a_store_that_answers_late_is_waited_for() -> None:
    with joined(HEARTBEAT) as (client, _), socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        threading.Timer(0.7, store.listen).start()
        begun = time.monotonic()
        client.wait_for_port(store.getsockname()[1], deadline=begun + 30)
        assert time.monotonic() - begun > 0.6


def test_a_round_is_given_up_when_its_server_vanishes_before_the_store_is_reached() -> None:
    with serving(HEARTBEAT, START | {"store": 1}) as ((host, port), gone):
        here = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1"}
        master = {"PET_MASTER_ADDR": host, "PET_MASTER_PORT": str(port)}
        handler = TorchRendezvousHandler(resolve(here | master, devices=lambda: 0), Settings())
        threading.Timer(0.7, gone.set).start()
        begun = time.monotonic()
        with pytest.raises(Fault, match="is gone") as caught:
            handler.next_rendezvous()
        assert caught.value.code == Exit.PEER
        assert time.monotonic() - begun < 10  # torch's client would wait for 30 s
        handler.leave(Exit.STOPPED)
