"""The rendezvous server on node 0: membership, heartbeats, round start.

Each node, node 0 included, holds one connection to it. A round is one start of all ranks.

    states      +---------+  enough nodes, all ready: "start"      +---------+
                | WAITING | -------------------------------------> | RUNNING |
                +---------+ <------------------------------------- +---------+
                     |        the ranks of a node ended;                |
                     |        elastic: a node joined, left              |
                     |        or was lost: "membership_changed"         |
                     |                                                  |
                     |  a node left with done: "peer_finished"          |
                     +-------------------> +----------+ <---------------+
                                           | FINISHED |  final: nodes that join get "finished"
                                           +----------+

A job of fixed size does not survive a node: when a running one loses a node, all others are sent
"peer_lost"; when a node leaves, "peer_finished". They then end, and so does the server.

    from a node                                from the server
    join    job, number, address, ranks        refused             reason; the node tries again
    ready   clean: its ranks could save        finished            the run is done, no round follows
    leave   done: its ranks finished           heartbeat           here: nodes that have joined
    heartbeat                                  start               number, rank, nodes, ranks, store
                                               membership_changed  reason, lost; send ready
                                               peer_lost           reason, silent
                                               peer_finished       reason

Each message is one line of JSON with its `kind`. `ranks` is the number of ranks of a node, or of each
node; `store` is the port of the round's own TCPStore; `number` is the node's, or the round's.

Time-outs, all on one machine's monotonic clock: a heartbeat every `peer_timeout` / 6; a node that is
silent for `peer_timeout`, or whose connection ends without "leave", is lost. The first round of an
elastic job starts when all of `max_nodes` have joined, or `last_call` seconds after the latest of at
least `min_nodes`. A server that was itself suspended for half of `peer_timeout` counts the silence
of all nodes from its wake-up. How long a node waits for a round is its own decision (client.py).

Trust: none is established. The server believes every connection that knows the job's id; only the
network keeps strangers away (NetworkPolicy). A malformed line ends its connection.

torch's own rendezvous is not used because it compares the wall clocks of machines (a node whose clock
is an hour behind is evicted as dead), waits 15 s for a lost node and 30 s for one more, and lets late
and early nodes wait for each other's keys (pytorch 147064).
"""

import contextlib
import enum
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.rendezvous.connection import Connection, Message


@dataclass(frozen=True)
class Rules:
    """What the server decides by. In seconds: `peer_timeout`, `last_call`."""

    job: str
    min_nodes: int
    max_nodes: int
    elastic: bool
    peer_timeout: float
    last_call: float

    @property
    def heartbeat_interval(self) -> float:
        return self.peer_timeout / 6


class State(enum.Enum):
    """See the drawing above."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


@dataclass
class _Node:
    connection: Connection
    number: int
    address: str
    ranks: int
    ready: bool = True
    joined: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"node {self.number} ({self.address})"


class RendezvousServer:
    """Serves in a thread of its own. `open_store` opens a round's TCPStore and returns its port."""

    def __init__(
        self, listener: socket.socket, rules: Rules, open_store: Callable[[], int]
    ) -> None:
        self._rules = rules
        self._open_store = open_store
        self._listener = listener
        self._state = State.WAITING
        self._round = 0  # the number of the newest one
        self._nodes: list[_Node] = []
        self._strangers: list[Connection] = []  # have not sent "join" yet
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; nodes that are still connected lose their peer."""
        self._closing.set()
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        rules = self._rules
        try:
            last_turn = next_heartbeat = time.monotonic()
            while not self._closing.is_set():
                for key, _ in self._selector.select(timeout=rules.heartbeat_interval / 2):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._receive(key.data)
                now = time.monotonic()
                if now - last_turn > rules.peer_timeout / 2:  # this process was suspended
                    for connection in self._connections():
                        connection.last_received = now
                last_turn = now
                self._drop_lost_connections(now)
                self._start_round_if_ready(now)
                if now >= next_heartbeat:
                    next_heartbeat = now + rules.heartbeat_interval
                    self._send_to_all("heartbeat", here=len(self._nodes))
        finally:
            for connection in self._connections():
                connection.close()
            self._listener.close()
            self._selector.close()

    def _connections(self) -> list[Connection]:
        return [*self._strangers, *(node.connection for node in self._nodes)]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection = Connection(self._listener.accept()[0])
            self._strangers.append(connection)
            self._selector.register(connection, selectors.EVENT_READ, connection)

    def _receive(self, connection: Connection) -> None:
        for message in connection.receive():
            node = next((node for node in self._nodes if node.connection is connection), None)
            match node, message["kind"]:
                case None, "join":
                    self._join(connection, message)
                case _Node(), "ready":
                    node.ready = True
                    lost = message.get("clean") is not True
                    self._change_membership(f"the ranks of {node.name} ended", lost=lost)
                case _Node(), "leave":
                    self._leave(node, done=message.get("done") is True)

    def _join(self, connection: Connection, message: Message) -> None:
        rules = self._rules
        number, ranks = message.get("number"), message.get("ranks")
        if self._state is State.FINISHED and message.get("job") == rules.job:
            connection.send("finished")
            return
        if (
            not isinstance(number, int)
            or not isinstance(ranks, int)
            or message.get("job") != rules.job
        ):
            refusal = f"this is job {rules.job!r}, another one or attempt"
        elif not rules.elastic and (
            self._state is State.RUNNING or number in {node.number for node in self._nodes}
        ):
            refusal = "a former attempt of this job still runs here"
        elif len(self._nodes) >= rules.max_nodes:
            refusal = f"all {rules.max_nodes} nodes have joined"
        else:
            node = _Node(connection, number, str(message.get("address")), ranks)
            self._change_membership(f"{node.name} joined", lost=False)
            self._strangers.remove(connection)
            self._nodes.append(node)
            return
        connection.send("refused", reason=refusal)

    def _leave(self, node: _Node, *, done: bool) -> None:
        """Remove a node that has finished the run, or was stopped."""
        self._remove(node)
        if done:
            self._state = State.FINISHED
        if done or not self._rules.elastic:
            self._send_to_all("peer_finished", reason=f"{node.name} has ended its part")
        else:
            self._change_membership(f"{node.name} left", lost=False)

    def _drop_lost_connections(self, now: float) -> None:
        timeout = self._rules.peer_timeout
        for connection in [*self._strangers]:
            if connection.closed or now - connection.last_received > timeout:
                self._strangers.remove(connection)
                self._disconnect(connection)
        for node in [*self._nodes]:
            silence = now - node.connection.last_received
            if node.connection.closed:
                self._lose(node, f"{node.name} is gone", silent=False)
            elif silence > timeout:
                self._lose(node, f"{node.name} has been silent for {silence:.1f} s", silent=True)

    def _lose(self, node: _Node, reason: str, *, silent: bool) -> None:
        self._remove(node)
        if self._rules.elastic:
            self._change_membership(reason, lost=True)
        elif self._state is State.RUNNING:
            self._send_to_all("peer_lost", reason=reason, silent=silent)

    def _change_membership(self, reason: str, *, lost: bool) -> None:
        """Have the nodes of a running round stop their ranks and get ready for the next one."""
        if self._state is not State.RUNNING:
            return
        self._state = State.WAITING
        for node in self._nodes:
            if not node.ready:
                node.connection.send("membership_changed", reason=reason, lost=lost)

    def _start_round_if_ready(self, now: float) -> None:
        nodes, rules = self._nodes, self._rules
        if self._state is not State.WAITING or len(nodes) < rules.min_nodes:
            return
        if not all(node.ready for node in nodes):
            return
        waited = now - max(node.joined for node in nodes)
        # Before the first round only: a later one is not worth a wait of all nodes for one more.
        if self._round == 0 and len(nodes) < rules.max_nodes and waited < rules.last_call:
            return
        self._round += 1
        self._state = State.RUNNING
        nodes.sort(key=lambda node: (node.number, node.joined))
        everyone = {
            "number": self._round,
            "nodes": [node.name for node in nodes],
            "ranks": [node.ranks for node in nodes],
            "store": self._open_store(),
        }
        for rank, node in enumerate(nodes):
            node.ready = False
            node.connection.send("start", rank=rank, **everyone)

    def _send_to_all(self, kind: str, **fields: object) -> None:
        for node in self._nodes:
            node.connection.send(kind, **fields)

    def _remove(self, node: _Node) -> None:
        self._nodes.remove(node)
        self._disconnect(node.connection)

    def _disconnect(self, connection: Connection) -> None:
        self._selector.unregister(connection)
        connection.close()
