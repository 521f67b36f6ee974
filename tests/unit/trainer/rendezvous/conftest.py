"""A rendezvous server, and nodes that join it."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.conftest import wait_for
from tests.unit.trainer.rendezvous.joining import TIMEOUT, client, contract
from trainer.config.exits import Exit
from trainer.rendezvous.client import RendezvousClient
from trainer.rendezvous.connection import connect
from trainer.rendezvous.membership import Rules
from trainer.rendezvous.server import RendezvousServer


@pytest.fixture
def serve() -> Iterator[Callable[..., Callable[..., RendezvousClient]]]:
    """Start a server for `low` to `high` nodes; return a function that lets node `number` join it.

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
