"""What the rendezvous server does with a connection that never joins, or reads nothing."""

import contextlib
import selectors
import socket
import time
from typing import Any

import pytest

from tests.unit.trainer.rendezvous.joining import TIMEOUT, rounds
from trainer.config.exits import Fault
from trainer.rendezvous.connection import Connection
from trainer.rendezvous.messages import HEARTBEATS_PER_SILENCE, encode


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
            connection.settimeout(TIMEOUT / 2)  # less than a stranger may stay
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


@pytest.mark.slow
def test_a_running_job_of_fixed_size_answers_few_strangers_and_refuses_a_late_node(
    serve: Any,
) -> None:
    join = serve(2, 2, elastic=False)
    rounds(join(0), join(1))
    with contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", join.port)))
            for _ in range(120)
        ]
        time.sleep(TIMEOUT)
        selector = stack.enter_context(selectors.DefaultSelector())
        for one in strangers:
            selector.register(one, selectors.EVENT_READ)
        assert 0 < len(selector.select(0)) <= 10 * (HEARTBEATS_PER_SILENCE + 1)
    with pytest.raises(Fault, match="an earlier attempt of this job still runs here"):
        join(1, seconds=4)


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
