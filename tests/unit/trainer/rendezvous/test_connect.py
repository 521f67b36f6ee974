"""Finding a node by a name that leads to several places. Real sockets."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trainer.rendezvous.connect import connect

Address = tuple[str, int]


@pytest.fixture
def places() -> Iterator[dict[str, Address]]:
    """Yield where somebody answers, where nobody does, and where one is refused."""
    with contextlib.ExitStack() as stack:
        answers = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # its queue is full, so that what else asks hears nothing
            full = stack.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(silent.getsockname())
        refuses = stack.enter_context(socket.socket())
        refuses.bind(("127.0.0.1", 0))
        found = {"answers": answers, "silent": silent, "refuses": refuses}
        yield {name: one.getsockname() for name, one in found.items()} | {
            "none": ("255.255.255.255", 1)  # no way there
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
def test_the_first_that_answers_is_taken(
    names: list[str], places: dict[str, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    _lead_to([places[name] for name in names], monkeypatch)
    with connect("name", 1) as found:
        assert found.getpeername() == places["answers"]
        assert found.getblocking()


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["refuses"], "Connection refused"),
        (["refuses", "none"], "refused|unreachable"),
        (["silent"], "timed out"),
        (["refuses", "silent"], "Connection refused"),  # which tells more
    ],
    ids=str,
)
def test_what_is_wrong_is_told_when_none_does(
    names: list[str], problem: str, places: dict[str, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    _lead_to([places[name] for name in names], monkeypatch)
    with pytest.raises(OSError, match=problem):
        connect("name", 1)


def test_who_says_no_is_asked_again_while_another_says_nothing(
    places: dict[str, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod that has just come does, while its name still leads to the one before as well."""
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        threading.Timer(0.5, late.listen).start()
        _lead_to([places["silent"], late.getsockname()], monkeypatch)
        with connect("name", 1) as found:
            assert found.getpeername() == late.getsockname()


def _lead_to(addresses: list[Address], monkeypatch: pytest.MonkeyPatch) -> None:
    tcp = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    answer: Any = [(*tcp, address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
