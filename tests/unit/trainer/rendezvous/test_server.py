"""The rendezvous server: which nodes may join, which are lost, when a round starts. Real sockets."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from trainer.config.exits import Exit, Fault
from trainer.rendezvous.client import RendezvousClient, Round
from trainer.rendezvous.server import RendezvousServer, Rules

TIMEOUT = 1.0  # seconds of silence; what is known without it is known much sooner


@pytest.fixture
def serve() -> Iterator[Callable[..., Callable[..., RendezvousClient]]]:
    """Start a server for `low` to `high` nodes; return a function with which node `number` joins it."""
    with contextlib.ExitStack() as stack:

        def start(low: int, high: int, *, elastic: bool = True, last_call: float = 0.2) -> Any:
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            rules = Rules("job", low, high, elastic, TIMEOUT, last_call)
            server = RendezvousServer(listener, rules, open_store=lambda: 1234)
            stack.callback(server.close)

            def join(number: int, *, job: str = "job", seconds: float = 30) -> RendezvousClient:
                member = RendezvousClient(
                    "127.0.0.1", port, job=job, ranks=number + 1, peer_timeout=TIMEOUT
                )
                stack.callback(member.leave, Exit.CODE)
                deadline = time.monotonic() + seconds
                member.join(number, deadline=deadline, own_address=f"10.0.0.{number}")
                return member

            join.port = port  # type: ignore[attr-defined]
            join.close = server.close  # type: ignore[attr-defined]
            return join

        yield start


def rounds(*members: RendezvousClient, clean: bool = True, seconds: float = 30) -> list[Round]:
    """Let the members wait for the next round at once, and return each one's.

    A round that starts before all have joined is followed by another, as with an agent.
    """
    results: dict[int, Round] = {}

    def wait(number: int) -> None:
        member, deadline = members[number], time.monotonic() + seconds
        found = member.next_round(deadline=deadline, clean=clean, min_nodes=2)
        while len(found.nodes) < len(members):
            wait_for(lambda: member.membership_changed)
            found = member.next_round(deadline=deadline, clean=clean, min_nodes=2)
        results[number] = found

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(len(members))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(members))]


def wait_for(what: Callable[[], Any], *, seconds: float = 30) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_a_fixed_size_starts_when_all_have_joined_ranked_by_their_numbers(serve: Any) -> None:
    join = serve(3, 3, elastic=False)
    members = [join(2), join(0), join(1)]
    found = rounds(*members)
    assert [one.rank for one in found] == [2, 0, 1]
    assert {one.number for one in found} == {1}
    assert found[0].nodes == [f"node {n} (10.0.0.{n})" for n in range(3)]
    assert [(one.first_rank, one.world_size) for one in found] == [(3, 6), (0, 6), (1, 6)]


def test_a_node_that_vanishes_breaks_a_fixed_size_and_is_named(serve: Any) -> None:
    join = serve(2, 2, elastic=False)
    first, second = join(0), join(1)
    rounds(first, second)
    second.leave(Exit.CODE)  # without "leave", as a killed launcher
    event = wait_for(lambda: first.peer_lost, seconds=TIMEOUT / 2)
    assert event.reason == "node 1 (10.0.0.1) is gone"
    with pytest.raises(Fault, match="is gone") as caught:
        first.next_round(deadline=time.monotonic() + 5, clean=False, min_nodes=2)
    assert caught.value.code == Exit.PEER


def test_a_silent_node_is_lost_within_the_bound_and_another_never(serve: Any) -> None:
    join = serve(1, 3)
    member = join(0)
    rounds(member)
    mute = socket.create_connection(("127.0.0.1", join.port))
    mute.sendall(b'{"kind": "join", "job": "job", "number": 1, "ranks": 1, "address": "mute"}\n')
    assert wait_for(lambda: member.membership_changed).reason == "node 1 (mute) joined"
    assert [len(one.nodes) for one in rounds(member)] == [2]
    event = wait_for(lambda: member.membership_changed, seconds=TIMEOUT * 1.5)
    assert event.lost
    assert event.reason.startswith("node 1 (mute) has been silent for 1.")
    assert [one.nodes for one in rounds(member)] == [["node 0 (10.0.0.0)"]]
    time.sleep(TIMEOUT * 1.5)
    assert member.membership_changed is member.peer_lost is None
    mute.close()


def test_nodes_join_and_leave_an_elastic_job(serve: Any) -> None:
    join = serve(1, 3)
    first, second = join(0), join(1)
    begun = rounds(first, second)
    assert [len(one.nodes) for one in begun] == [2, 2]
    third = join(2)
    for member in (first, second):
        event = wait_for(partial(getattr, member, "membership_changed"))
        assert (event.reason, event.lost) == ("node 2 (10.0.0.2) joined", False)
    found = rounds(first, second, third)
    second_round = begun[0].number + 1
    assert [(one.number, one.rank, len(one.nodes)) for one in found] == [
        (second_round, 0, 3),
        (second_round, 1, 3),
        (second_round, 2, 3),
    ]
    second.leave(Exit.STOPPED)
    assert not wait_for(lambda: first.membership_changed).lost
    third.leave(Exit.CODE)
    (alone,) = rounds(first)
    assert (alone.nodes, alone.number) == (["node 0 (10.0.0.0)"], second_round + 1)


def test_ranks_that_failed_bring_all_nodes_to_the_next_round(serve: Any) -> None:
    join = serve(2, 2)
    first, second = join(0), join(1)
    rounds(first, second)
    again: list[Round] = []
    failed = threading.Thread(target=lambda: again.extend(rounds(first, clean=False)))
    failed.start()
    assert wait_for(lambda: second.membership_changed).lost
    assert rounds(second)[0].number == 2
    failed.join()
    assert [one.number for one in again] == [2]


def test_a_node_too_late_too_many_or_of_another_job_is_refused(serve: Any) -> None:
    fixed = serve(2, 2, elastic=False)
    first, second = fixed(0), fixed(1)
    rounds(first, second)
    with pytest.raises(Fault, match="a former attempt of this job still runs here"):
        fixed(1, seconds=0.2)
    with pytest.raises(Fault, match="this is job 'job', another one or attempt"):
        fixed(1, job="attempt-2", seconds=0.2)
    small = serve(1, 1)
    only = small(0)
    rounds(only)
    with pytest.raises(Fault, match="all 1 nodes have joined"):
        small(1, seconds=0.2)


def test_a_refused_node_takes_the_place_of_a_former_attempt_once_that_is_gone(serve: Any) -> None:
    join = serve(1, 1)
    former = join(0)
    rounds(former)
    threading.Timer(0.5, former.leave, (Exit.CODE,)).start()
    assert rounds(join(0))[0].number == 2


def test_a_finished_run_admits_no_node_and_the_others_are_informed(serve: Any) -> None:
    join = serve(1, 3)
    first, second = join(0), join(1)
    rounds(first, second)
    first.leave(Exit.DONE)
    assert wait_for(lambda: second.peer_finished).reason == "node 0 (10.0.0.0) has ended its part"
    with pytest.raises(Fault, match="finished before this node came") as caught:
        join(2)
    assert caught.value.code == Exit.DONE


def test_too_few_nodes_are_counted(serve: Any) -> None:
    member = serve(2, 2)(0)
    with pytest.raises(Fault, match=r"only 1 of 2 nodes came to the rendezvous at 127.0.0.1:"):
        member.next_round(deadline=time.monotonic() + 0.5, clean=True, min_nodes=2)


def test_leaving_ends_a_wait_with_143(serve: Any) -> None:
    member = serve(2, 2)(0)
    threading.Timer(0.2, member.leave, (Exit.STOPPED,)).start()
    with pytest.raises(Fault) as caught:
        member.next_round(deadline=time.monotonic() + 5, clean=True, min_nodes=2)
    assert caught.value.code == Exit.STOPPED


NONSENSE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\xff" * 200_000,
    b"[" * 50_000 + b"\n",
    b'{"kind": 1}\n{"kind": "ready"}\n{"kind": "leave"}\n',
    b'{"kind": "join", "number": "1"}\n',
    json.dumps({"kind": "join", "job": ["job"], "number": 1}).encode() + b"\n",
]


def test_strangers_change_nothing(serve: Any) -> None:
    join = serve(1, 2)
    member = join(0)
    rounds(member)
    for text in NONSENSE:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", join.port)) as to:
            to.sendall(text)
    time.sleep(TIMEOUT / 2)
    assert member.membership_changed is member.peer_lost is None
    join(1)
    assert wait_for(lambda: member.membership_changed)


def test_no_wall_clock_decides(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's rendezvous takes a node whose clock is behind for dead."""

    def none() -> float:
        raise AssertionError("a clock that differs between machines was read")

    monkeypatch.setattr(time, "time", none)
    join = serve(2, 2)
    assert len(rounds(join(0), join(1))) == 2
