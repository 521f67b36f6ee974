"""A node's end of the roll: what a keeper, here a bare socket, says and does not say."""

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
from trainer.rendezvous.client import Member
from trainer.rendezvous.rendezvous import Rendezvous

BEAT = {"kind": "beat", "here": 2}
START = {"kind": "start", "number": 3, "rank": 1, "nodes": ["a", "b"], "ranks": [1, 1], "store": 5}


@contextlib.contextmanager
def keeping(
    *first: dict[str, Any], beats: bool = True
) -> Iterator[tuple[tuple[str, int], threading.Event]]:
    """Yield where a keeper listens that tells who comes `first` and then beats, and what ends it."""
    gone = threading.Event()

    def keep(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):  # the member left
            connection.recv(1000)
            connection.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in first))
            while not gone.wait(0.1):
                if beats:
                    connection.sendall(json.dumps(BEAT).encode() + b"\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        keeper = threading.Thread(target=keep, args=(listener,))
        keeper.start()
        try:
            yield listener.getsockname(), gone
        finally:
            gone.set()
            keeper.join()


@contextlib.contextmanager
def joined(*first: dict[str, Any], beats: bool = True) -> Iterator[tuple[Member, threading.Event]]:
    """Yield a member of such a keeper's roll, and what ends the keeper."""
    with keeping(*first, beats=beats) as (place, gone):
        member = Member(*place, job="job", ranks=1, peer_timeout=TIMEOUT)
        try:
            member.join(0, deadline=time.monotonic() + 30, own_address="me")
            yield member, gone
        finally:
            member.leave(Exit.STOPPED)


def test_a_silent_keeper_is_lost_within_the_bound() -> None:
    with joined(BEAT, beats=False) as (member, _):
        news = wait_for(lambda: member.broken, seconds=TIMEOUT * 1.5)
        assert "has been silent for 1." in news.reason
        assert news.silent


def test_all_that_comes_with_the_first_answer_counts() -> None:
    """A link that was away for a moment brings the beat and the start of the round together."""
    with joined(BEAT, START) as (member, _):
        found = member.next_round(deadline=time.monotonic() + 30, clean=True, least=2)
        assert (found.number, found.rank, found.store) == (3, 1, 5)


@pytest.mark.parametrize(
    ("then", "code", "why"),
    [
        ("keeper vanishes", Exit.PEER, "the rendezvous at .* is gone"),
        ("member leaves", Exit.STOPPED, "stopped"),
        ("time is up", Exit.PEER, "no answer at 127.0.0.1:1, where the nodes meet: Connection ref"),
    ],
)
def test_a_store_that_does_not_answer_is_given_up(then: str, code: Exit, why: str) -> None:
    """Torch's client would go on for 30 s and more, whatever has become of the keeper."""
    with joined(BEAT) as (member, gone):
        if then == "keeper vanishes":
            threading.Timer(0.7, gone.set).start()
        if then == "member leaves":
            threading.Timer(0.7, member.leave, (Exit.STOPPED,)).start()
        begun = time.monotonic()
        with pytest.raises(Fault, match=why) as caught:
            member.reach(1, deadline=begun + (0.6 if then == "time is up" else 30))
        assert caught.value.code == code
        assert 0.5 < time.monotonic() - begun < 10


def test_a_store_that_answers_late_is_waited_for() -> None:
    with joined(BEAT) as (member, _), socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        threading.Timer(0.7, store.listen).start()
        begun = time.monotonic()
        member.reach(store.getsockname()[1], deadline=begun + 30)
        assert time.monotonic() - begun > 0.6


def test_a_round_is_given_up_when_its_keeper_vanishes_before_the_store_is_reached() -> None:
    with keeping(BEAT, START | {"store": 1}) as ((host, port), gone):
        here = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1"}
        master = {"PET_MASTER_ADDR": host, "PET_MASTER_PORT": str(port)}
        rendezvous = Rendezvous(resolve(here | master, devices=lambda: 0), Settings())
        threading.Timer(0.7, gone.set).start()
        begun = time.monotonic()
        with pytest.raises(Fault, match="is gone") as caught:
            rendezvous.next_rendezvous()
        assert caught.value.code == Exit.PEER
        assert time.monotonic() - begun < 10  # torch's client would go on for 30 s
        rendezvous.leave(Exit.STOPPED)
