"""Connecting to a name that has several addresses. Real sockets."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trainer.rendezvous.connection import connect

Address = tuple[str, int]


@pytest.fixture
def addresses() -> Iterator[dict[str, Address]]:
    """Yield an address that answers, one that is silent, one that refuses, and one without a route."""
    with contextlib.ExitStack() as stack:
        answers = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # a full backlog: further connections get no answer
            full = stack.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(silent.getsockname())
        refuses = stack.enter_context(socket.socket())
        refuses.bind(("127.0.0.1", 0))
        found = {"answers": answers, "silent": silent, "refuses": refuses}
        yield {name: one.getsockname() for name, one in found.items()} | {
            "none": ("255.255.255.255", 1)  # no route
        }


@pytest.mark.parametrize(
    "names",
    [
        ["answers"],
        ["silent", "answers"],
        ["refuses", "answers"],
        ["none", "answers"],
        ["answers", "silent", "refuses"],
    ],
    ids=" ".join,
)
def test_the_first_address_that_answers_is_used(
    names: list[str], addresses: dict[str, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    _resolve_to([addresses[name] for name in names], monkeypatch)
    with connect("name", 1) as found:
        assert found.getpeername() == addresses["answers"]
        assert found.getblocking()


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["refuses"], "Connection refused"),
        (["refuses", "none"], "refused|unreachable"),
        (["silent"], "timed out"),
        (["refuses", "silent"], "Connection refused"),  # this error says more
    ],
    ids=str,
)
def test_without_an_answer_the_most_telling_problem_is_raised(
    names: list[str], problem: str, addresses: dict[str, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    _resolve_to([addresses[name] for name in names], monkeypatch)
    monkeypatch.setattr("trainer.rendezvous.connection._CONNECT_TIMEOUT", 0.5)
    with pytest.raises(OSError, match=problem):
        connect("name", 1)


def test_an_address_that_refuses_is_tried_again_while_another_is_silent(
    addresses: dict[str, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new pod refuses connections until it listens; its name may still resolve to the old pod too."""
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        threading.Timer(0.5, late.listen).start()
        _resolve_to([addresses["silent"], late.getsockname()], monkeypatch)
        with connect("name", 1) as found:
            assert found.getpeername() == late.getsockname()


def _resolve_to(found: list[Address], monkeypatch: pytest.MonkeyPatch) -> None:
    tcp = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    answer: Any = [(*tcp, address) for address in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
