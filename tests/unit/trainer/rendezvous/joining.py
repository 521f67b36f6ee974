"""Nodes that join a rendezvous and wait for a round, for the tests of its server and its client.

first, second = serve(2, 2)(0), ...
"""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.conftest import wait_for
from trainer.config.contract import Contract, resolve
from trainer.rendezvous.client import RendezvousClient
from trainer.rendezvous.events import Round

TIMEOUT = 1.0  # seconds of silence; other losses are detected much sooner


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


def next_round(member: RendezvousClient, *, clean: bool = True, seconds: float = 30) -> Round:
    return member.next_round(
        clean=clean,
        open_port=lambda: 1234,
        deadline=time.monotonic() + seconds,
        turn=lambda: None,
    )


def rounds(*members: RendezvousClient, clean: bool = True) -> list[Round]:
    """Let the members wait for the next round at the same time, and return the round of each.

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
