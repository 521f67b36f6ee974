"""The rendezvous server and its clients: who may join, who is lost, when a round starts."""

import contextlib
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from trainer.config.contract import Contract, resolve
from trainer.config.exits import Exit, Fault
from trainer.rendezvous.client import RendezvousClient
from trainer.rendezvous.connection import Connection, connect
from trainer.rendezvous.events import Round
from trainer.rendezvous.membership import Rules
from trainer.rendezvous.messages import HEARTBEATS_PER_SILENCE, encode
from trainer.rendezvous.server import RendezvousServer

TIMEOUT = 1.0  # seconds of silence; what is known without it is known much sooner


def contract(number: int, *, nodes: int, port: int, ranks: int = 1, job: str = "job") -> Contract:
    variables = {
        "PET_NNODES": str(max(nodes, number + 1)),
        "PET_NODE_RANK": str(number),
        "PET_NPROC_PER_NODE": str(ranks),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
        "PET_RDZV_ID": job,
    }
    return resolve(variables, devices=lambda: 0)


def client(
    place: Contract, *, open_connection: Callable[[], socket.socket], **changed: Any
) -> RendezvousClient:
    known: dict[str, Any] = {"secret": "", "peer_timeout": TIMEOUT, "has_store": False}
    return RendezvousClient(place, open_connection, **(known | changed))


@pytest.fixture
def serve() -> Iterator[Callable[..., Callable[..., RendezvousClient]]]:
    """Start a server for `low` to `high` nodes; return a function with which node `number` joins it.

    Number 0 is the server's own node.
    """
    with contextlib.ExitStack() as stack:

        def start(
            low: int, high: int, *, elastic: bool = True, last_call: float = 0.2, secret: str = ""
        ) -> Any:
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            rules = Rules(low, high, elastic, TIMEOUT, last_call)
            server = RendezvousServer(listener, rules, job="job", secret=secret)
            stack.callback(server.close)

            def join(
                number: int, *, job: str = "job", seconds: float = 30, secret: str = secret
            ) -> RendezvousClient:
                place = contract(number, nodes=max(high, 2), port=port, ranks=number + 1, job=job)
                opened = partial(connect, "127.0.0.1", port)
                member = client(
                    place,
                    open_connection=(lambda: server.own_socket) if number == 0 else opened,
                    secret=secret,
                )
                stack.callback(member.leave, Exit.CODE)
                member.start(deadline=time.monotonic() + seconds)
                wait_for(lambda: member.joined or member.failure)
                if member.failure:
                    raise member.failure
                return member

            join.port = port  # type: ignore[attr-defined]
            join.server = server  # type: ignore[attr-defined]
            return join

        yield start


def next_round(
    member: RendezvousClient, *, clean: bool = True, port: int = 1234, seconds: float = 30
) -> Round:
    return member.next_round(
        clean=clean,
        open_port=lambda: port,
        deadline=time.monotonic() + seconds,
        turn=lambda: None,
    )


def rounds(*members: RendezvousClient, clean: bool = True) -> list[Round]:
    """Let the members wait for the next round at once, and return each one's.

    A round that starts before all have joined is followed by another, as in the launcher.
    """
    results: dict[int, Round] = {}

    def wait(number: int) -> None:
        member = members[number]
        found = next_round(member, clean=clean)
        while found.nodes < len(members):
            wait_for(lambda: member.membership_changed)
            found = next_round(member, clean=clean)
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
    assert [one.node for one in found] == [2, 0, 1]
    assert {(one.number, one.nodes, one.port) for one in found} == {(1, 3, 1234)}
    assert [(one.first_rank, one.world_size) for one in found] == [(3, 6), (0, 6), (1, 6)]
    assert join.server.address == "127.0.0.1"


def test_a_node_that_vanishes_breaks_a_fixed_size_and_is_named(serve: Any) -> None:
    join = serve(2, 2, elastic=False)
    first, second = join(0), join(1)
    rounds(first, second)
    second.leave(Exit.CODE)  # without "leave", as a killed launcher
    event = wait_for(lambda: first.peer_lost, seconds=TIMEOUT / 2)
    assert event.reason == "node 1 (127.0.0.1) is gone"
    with pytest.raises(Fault, match="is gone") as caught:
        next_round(first, clean=False, seconds=5)
    assert caught.value.code == Exit.PEER


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
    rounds(first, second)
    with pytest.raises(Fault, match="a former attempt of this job still runs here"):
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
    with pytest.raises(Fault, match="finished before this node came") as caught:
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
    with pytest.raises(Fault, match=r"only 1 of 2 nodes came to the rendezvous at 127.0.0.1:"):
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
    """torch's rendezvous takes a node whose clock is behind for dead."""

    def none() -> float:
        raise AssertionError("a clock that differs between machines was read")

    monkeypatch.setattr(time, "time", none)
    join = serve(2, 2)
    assert len(rounds(join(0), join(1))) == 2


def stranger(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT * 3)
    connection.recv(4096)  # the challenge
    return connection


def test_a_line_that_is_no_message_ends_its_connection_and_nothing_else(serve: Any) -> None:
    join = serve(1, 3)
    member = join(0)
    rounds(member)
    for wrong in (b"nonsense\n", encode("leave", done=True), b"x" * 5000):
        with stranger(join.port) as connection:
            connection.sendall(wrong)
            connection.settimeout(TIMEOUT / 2)  # not as long as a stranger may stay
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(4096) == b""
    assert member.membership_changed is member.peer_lost is None


def test_strangers_have_an_absolute_time_to_join_however_much_they_send(serve: Any) -> None:
    join = serve(1, 3)
    began = time.monotonic()
    with stranger(join.port) as connection, contextlib.suppress(OSError):
        while time.monotonic() < began + TIMEOUT * 5:
            connection.sendall(b"{")
            time.sleep(0.05)
    assert TIMEOUT * 0.8 < time.monotonic() - began < TIMEOUT * 3


def test_a_running_job_of_fixed_size_answers_few_strangers_and_refuses_a_late_node(
    serve: Any,
) -> None:
    join = serve(2, 2, elastic=False)
    rounds(join(0), join(1))
    with contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", join.port)))
            for _ in range(200)
        ]
        time.sleep(TIMEOUT)
        selector = stack.enter_context(selectors.DefaultSelector())
        for one in strangers:
            selector.register(one, selectors.EVENT_READ)
        assert 0 < len(selector.select(0)) <= 10 * (HEARTBEATS_PER_SILENCE + 1)
    with pytest.raises(Fault, match="a former attempt of this job still runs here"):
        join(1, seconds=10)


def test_of_too_many_strangers_the_oldest_goes_and_a_node_still_joins(serve: Any) -> None:
    join = serve(1, 3)
    member = join(0)
    held = [stranger(join.port) for _ in range(300)]  # 256 are allowed for few nodes
    assert held[0].recv(1) == b""
    join(1)
    held[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        held[-1].recv(1)
    assert member.peer_lost is None
    for one in held:
        one.close()


def test_a_member_that_reads_nothing_is_lost_and_keeps_no_other_waiting(serve: Any) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(listener.getsockname()) as deaf, listener:
        connection = Connection(listener.accept()[0])
        began = time.monotonic()
        while not connection.closed and time.monotonic() < began + 30:
            connection.send(b"x" * 100_000)
        assert connection.closed
        assert time.monotonic() - began < 5
        deaf.close()


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
