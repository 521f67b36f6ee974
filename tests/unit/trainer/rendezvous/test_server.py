"""The rendezvous server and its clients: who may join, who is lost, when a round starts."""

import resource
import socket
import threading
import time
from functools import partial
from typing import Any

import pytest

from tests.conftest import wait_for
from tests.unit.trainer.rendezvous.joining import TIMEOUT, next_round, rounds
from trainer.config.exits import Exit, Fault
from trainer.rendezvous.events import Round
from trainer.rendezvous.membership import Rules
from trainer.rendezvous.server import RendezvousServer


def test_a_fixed_size_starts_when_all_have_joined_ranked_by_their_numbers(serve: Any) -> None:
    join = serve(3, 3, elastic=False)
    members = [join(2), join(0), join(1)]
    found = rounds(*members)
    assert [one.node for one in found] == [2, 0, 1]
    assert {(one.number, one.nodes, one.port) for one in found} == {(1, 3, 1234)}
    assert [(one.first_rank, one.world_size) for one in found] == [(3, 6), (0, 6), (1, 6)]
    assert join.server.address == "127.0.0.1"


def test_a_node_that_vanishes_breaks_a_fixed_size_and_is_named(serve: Any) -> None:
    join = serve(2, 2, elastic=False)
    first, second = join(0), join(1)
    rounds(first, second)
    second.leave(Exit.CODE)  # without "leave", like a killed launcher
    event = wait_for(lambda: first.peer_lost, seconds=TIMEOUT / 2)
    assert event.reason == "node 1 (127.0.0.1) is gone"
    with pytest.raises(Fault, match="is gone") as caught:
        next_round(first, clean=False, seconds=5)
    assert caught.value.code == Exit.PEER


@pytest.mark.slow
def test_a_silent_node_is_lost_within_the_bound_and_another_never(serve: Any) -> None:
    join = serve(1, 3)
    member = join(0)
    rounds(member)
    held = threading.Event()
    mute = join(1)
    assert wait_for(lambda: member.membership_changed).reason == "node 1 (127.0.0.1) joined"
    assert [one.nodes for one in rounds(member, mute)] == [2, 2]
    silenced: Any = mute
    silenced._send = lambda *_, **__: held.set()  # noqa: SLF001
    event = wait_for(lambda: member.membership_changed, seconds=TIMEOUT * 1.5)
    assert held.is_set()
    assert event.lost
    assert event.reason.startswith("node 1 (127.0.0.1) has been silent for 1.")
    assert [one.nodes for one in rounds(member)] == [1]
    time.sleep(TIMEOUT * 1.5)
    assert member.membership_changed is member.peer_lost is None


def test_nodes_join_and_leave_an_elastic_job(serve: Any) -> None:
    join = serve(1, 3)
    first, second = join(0), join(1)
    begun = rounds(first, second)
    assert [one.nodes for one in begun] == [2, 2]
    third = join(2)
    for member in (first, second):
        event = wait_for(partial(getattr, member, "membership_changed"))
        assert (event.reason, event.lost) == ("node 2 (127.0.0.1) joined", False)
    found = rounds(first, second, third)
    second_round = begun[0].number + 1
    assert [(one.number, one.node, one.nodes) for one in found] == [
        (second_round, 0, 3),
        (second_round, 1, 3),
        (second_round, 2, 3),
    ]
    second.leave(Exit.STOPPED)
    assert not wait_for(lambda: first.membership_changed).lost
    third.leave(Exit.CODE)
    (alone,) = rounds(first)
    assert (alone.nodes, alone.number) == (1, second_round + 1)


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
    wait_for(lambda: second.joined)
    with pytest.raises(Fault, match="another node with PET_NODE_RANK=1"):
        fixed(1, seconds=0.2)
    rounds(first, second)
    with pytest.raises(Fault, match="an earlier attempt of this job still runs here"):
        fixed(1, seconds=0.2)
    with pytest.raises(Fault, match=r"another job, attempt, or secret$") as caught:
        fixed(1, job="attempt-2", seconds=0.2)
    assert "'job'" not in str(caught.value)  # a stranger does not learn the identity
    with pytest.raises(Fault, match="another job, attempt, or secret"):
        fixed(1, secret="guessed", seconds=0.2)  # noqa: S106
    small = serve(1, 1)
    rounds(small(0))
    with pytest.raises(Fault, match="all 1 nodes have joined"):
        small(1, seconds=0.2)
    larger = serve(2, 2, elastic=False)
    with pytest.raises(Fault, match="this job has 2 nodes, numbered from 0"):
        larger(2, seconds=0.2)


def test_a_refused_node_takes_the_place_of_a_former_one_once_that_is_gone(serve: Any) -> None:
    join = serve(2, 2)
    first, former = join(0), join(1)
    rounds(first, former)
    threading.Timer(0.5, former.leave, (Exit.CODE,)).start()
    assert [one.number for one in rounds(first, join(1))] == [2, 2]


def test_a_run_that_the_servers_node_has_finished_admits_no_node(serve: Any) -> None:
    join = serve(1, 3)
    first, second = join(0), join(1)
    rounds(first, second)
    first.leave(Exit.DONE)
    assert wait_for(lambda: second.peer_finished).reason == "node 0 has ended its part"
    with pytest.raises(Fault, match="finished before this node joined") as caught:
        join(2)
    assert caught.value.code == Exit.DONE


def test_another_node_that_has_finished_ends_all_but_the_servers(serve: Any) -> None:
    join = serve(3, 3)
    first, second, third = join(0), join(1), join(2)
    rounds(first, second, third)
    third.leave(Exit.DONE)
    reason = "node 2 (127.0.0.1) has ended its part"
    assert wait_for(lambda: second.peer_finished).reason == reason
    with pytest.raises(Fault, match="the run is ending"):
        join(2, seconds=0.2)
    assert first.peer_finished is first.membership_changed is None


def test_a_joiner_cannot_finish_the_run(serve: Any) -> None:
    join = serve(1, 3)
    first = join(0)
    rounds(first)
    joiner = join(1)
    wait_for(lambda: first.membership_changed)
    joiner.leave(Exit.DONE)
    assert [one.nodes for one in rounds(first)] == [1]
    assert first.peer_finished is None
    assert [one.nodes for one in rounds(first, join(2))] == [2, 2]


def test_too_few_nodes_are_counted(serve: Any) -> None:
    member = serve(2, 2)(0)
    with pytest.raises(Fault, match=r"only 1 of 2 nodes joined the rendezvous at 127.0.0.1:"):
        next_round(member, seconds=0.5)


def test_a_turn_ends_a_wait(serve: Any) -> None:
    member = serve(2, 2)(0)
    end = time.monotonic() + 0.2

    def turn() -> None:
        if time.monotonic() > end:
            raise Fault(Exit.STOPPED, "SIGTERM")

    with pytest.raises(Fault, match="SIGTERM"):
        member.next_round(clean=True, open_port=lambda: 0, deadline=end + 30, turn=turn)
    assert time.monotonic() < end + 5


def test_no_wall_clock_decides(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's rendezvous treats a node whose clock is behind as dead."""

    def none() -> float:
        raise AssertionError("a clock that differs between machines was read")

    monkeypatch.setattr(time, "time", none)
    join = serve(2, 2)
    assert len(rounds(join(0), join(1))) == 2


def test_more_nodes_than_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    rules = Rules(3000, 3000, elastic=False, peer_timeout=3, last_call=5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = RendezvousServer(listener, rules, job="job", secret="")
        server.close()
    assert limits["now"] == (4096, 4096)
    many = Rules(4000, 4000, elastic=False, peer_timeout=3, last_call=5)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(Fault, match="may open 4096 files, and 4000 nodes need 4512") as caught,
    ):
        RendezvousServer(listener, many, job="job", secret="")
    assert caught.value.code == Exit.MACHINE
