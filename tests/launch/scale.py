"""Thousands of simulated nodes and the real rendezvous server: how long a round takes, and its cost.

python -m tests.launch.scale 16 256 1024 4096 10000     # one row of the table each
"""

import json
import secrets
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.conftest import ROOT, clean_environment
from tests.launch.strangers import connect, raise_file_limit
from trainer.rendezvous.connection import Connection
from trainer.rendezvous.membership import Rules
from trainer.rendezvous.messages import (
    FROM_SERVER,
    HEARTBEATS_PER_SILENCE,
    decode,
    encode,
    proof,
)
from trainer.rendezvous.server import RendezvousServer

PROCESSES = 2
REST = 5.0  # seconds at rest for the measurement
TIMEOUT = 120.0
_KEY = "job\nsecret"


@dataclass(frozen=True)
class Row:
    """What was measured. `round_s`: from the first connection until all nodes have started."""

    nodes: int
    round_s: float
    messages: int
    kilobytes: float
    busy: float  # processor seconds of the server in a second at rest
    loss_s: float  # from a closed connection until all nodes know of it

    def __str__(self) -> str:
        return (
            f"| {self.nodes:,} | {self.round_s:.2f} s | {self.messages / self.nodes:.1f} | "
            f"{self.kilobytes / self.nodes:.2f} kB | {self.busy:.1%} | {self.loss_s:.2f} s |"
        )


def measure(nodes: int) -> Row:
    """Start the server and the simulated nodes in separate processes, and measure a round."""
    server = _Part("server", nodes)
    port = server.next()["port"]
    parts: list[_Part] = []
    try:
        began = time.monotonic()
        share = -(-nodes // PROCESSES)
        parts += [
            _Part("nodes", port, first, min(share, nodes - first))
            for first in range(0, nodes, share)
        ]
        started = [part.next() for part in parts]
        round_s = max(one["started"] for one in started) - min(one["began"] for one in started)
        assert round_s < time.monotonic() - began
        before = server.cpu()
        time.sleep(REST)
        busy = (server.cpu() - before) / REST
        lost = time.monotonic()
        parts[-1].tell("lose")
        known = max(part.next()["lost"] for part in parts)
        messages = sum(one["messages"] for one in started)
        size = sum(one["bytes"] for one in started)
        return Row(nodes, round_s, messages, size / 1000, busy, known - lost)
    finally:
        for part in (*parts, server):
            part.end()


class _Part:
    """A process of the measurement, which writes lines of JSON."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.launch.scale", *map(str, arguments)],
            cwd=ROOT,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def next(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def tell(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def cpu(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def _serve(nodes: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    rules = Rules(nodes + 1, nodes + 1, elastic=False, peer_timeout=3, last_call=5)
    server = RendezvousServer(listener, rules, job="job", secret="secret")  # noqa: S106
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    _Nodes([server.own_socket], first=0).run_until("nothing")


@dataclass
class _Node:
    number: int
    connection: Connection
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    joined: bool = False


class _Nodes:
    """Simulated nodes, the first of which is number `first`."""

    def __init__(self, sockets: list[socket.socket], *, first: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._interval = TIMEOUT
        self.nodes = []
        self.messages = self.bytes = 0
        for number, connected in enumerate(sockets, start=first):
            node = _Node(number, Connection(connected))
            self.nodes.append(node)
            self._selector.register(connected, selectors.EVENT_READ, node)

    def run_until(self, kind: str, *, commands: bool = False) -> float:
        """Take part until each node has received a message of that kind; return when the last did."""
        waiting = {node.number for node in self.nodes}
        if commands:
            self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        next_heartbeat = time.monotonic() + 1
        while waiting:
            events = self._selector.select(timeout=0.05)
            # A command last: the node that it takes away may have an event, too.
            for key, _ in sorted(events, key=lambda event: event[0].data is None):
                if key.data is None:
                    sys.stdin.readline()
                    lost = self.nodes.pop()
                    self._selector.unregister(lost.connection.socket)
                    lost.connection.close()
                    waiting.discard(lost.number)
                    continue
                for line in key.data.connection.receive():
                    if self._answer(key.data, line) == kind:
                        waiting.discard(key.data.number)
                assert not key.data.connection.closed, f"node {key.data.number} was lost"
            if time.monotonic() >= next_heartbeat:
                next_heartbeat = time.monotonic() + self._interval
                for node in self.nodes:
                    if node.joined:
                        node.connection.send(encode("heartbeat"))
        return time.monotonic()

    def _answer(self, node: _Node, line: bytes) -> str:
        message = decode(line, FROM_SERVER)
        assert message is not None, line
        # Heartbeats are set for the time that a round takes on a busy machine.
        if not (message["kind"] == "heartbeat" and node.joined):
            self.messages += 1
            self.bytes += len(line) + 1
        match message["kind"]:
            case "challenge":
                ours = proof(_KEY, "join", message["nonce"], node.nonce, node.number, 8)
                self._send(
                    node, encode("join", number=node.number, ranks=8, nonce=node.nonce, proof=ours)
                )
            case "welcome":
                self._interval = message["silence"] / HEARTBEATS_PER_SILENCE
            case "heartbeat" if not node.joined:
                node.joined = True
                self._send(node, encode("ready", clean=True, port=1))
            case "refused":
                raise AssertionError(message["reason"])
        return str(message["kind"])

    def _send(self, node: _Node, line: bytes) -> None:
        self.messages += 1
        self.bytes += len(line)
        node.connection.send(line)


def _simulate(port: int, first: int, count: int) -> None:
    raise_file_limit(count + 100)
    began = time.monotonic()
    sockets = [connect(("127.0.0.1", port), timeout=60) for _ in range(count)]
    nodes = _Nodes(sockets, first=first + 1)
    started = nodes.run_until("start")
    counted = {"messages": nodes.messages, "bytes": nodes.bytes}
    print(json.dumps({"began": began, "started": started, **counted}), flush=True)
    print(json.dumps({"lost": nodes.run_until("peer_lost", commands=True)}), flush=True)
    sys.stdin.readline()


def main(arguments: list[str]) -> None:
    """Run a part of a measurement, or the whole measurement."""
    if arguments[0] == "server":
        _serve(int(arguments[1]))
    elif arguments[0] == "nodes":
        _simulate(*map(int, arguments[1:]))
    else:
        print(
            "| nodes | full round | messages per node | bytes per node | core, idle | loss noticed |"
        )
        print("|---|---|---|---|---|---|")
        for nodes in map(int, arguments):
            print(measure(nodes), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
