"""The roll that one node keeps of all: who is there, who is lost, and when they start together.

Every agent, the keeper's own included, holds one connection to it. A connection that ends without a
farewell, or is silent for `peer_timeout` seconds, is a lost node. A job of fixed size ends with it; an
elastic one stops its ranks and starts the next round with the nodes that are there.

torch's own rendezvous is not used for this because it compares the wall clocks of different machines
(a node an hour behind is evicted as dead), waits 15 s for a lost node and 30 s for one more, and lets
late and early nodes wait for each other's keys (pytorch 147064). Here time is measured by one machine.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.rendezvous.wire import Line, Message


@dataclass(frozen=True)
class Rules:
    """What the keeper goes by. Seconds: `peer_timeout` of silence, `last_call` for one more node."""

    job: str
    min_nodes: int
    max_nodes: int
    elastic: bool
    peer_timeout: float
    last_call: float

    @property
    def beat(self) -> float:
        """Seconds between two signs of life."""
        return self.peer_timeout / 6


@dataclass
class _Node:
    line: Line
    number: int = 0
    address: str = ""
    ranks: int = 1
    ready: bool = False
    arrived: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"node {self.number} ({self.address})"


class Coordinator:
    """Keeps the roll in a thread. `open_store` opens a round's TCPStore and returns its port."""

    def __init__(
        self, listener: socket.socket, rules: Rules, open_store: Callable[[], int]
    ) -> None:
        self._rules = rules
        self._open_store = open_store
        self._listener = listener
        self._strangers: list[Line] = []  # who has not said yet who it is
        self._nodes: list[_Node] = []
        self._round = 0
        self._running = False
        self._finished = False
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="coordinator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the roll; every node that is still there takes it for the loss of this one."""
        self._end.set()
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        try:
            woke = beat_due = time.monotonic()
            while not self._end.is_set():
                for key, _ in self._selector.select(timeout=self._rules.beat / 2):
                    self._hear(key)
                now = time.monotonic()
                if now - woke > self._rules.peer_timeout / 2:
                    # This process slept (stopped, starved): it judges nobody by that time.
                    for line in self._lines():
                        line.heard = now
                woke = now
                self._drop_the_lost(now)
                self._start_when_all_are_ready(now)
                if now >= beat_due:
                    beat_due = now + self._rules.beat
                    self._tell("beat", here=len(self._nodes))
        finally:
            for line in self._lines():
                line.close()
            self._listener.close()
            self._selector.close()

    def _lines(self) -> list[Line]:
        return [*self._strangers, *(node.line for node in self._nodes)]

    def _hear(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            with contextlib.suppress(OSError):
                line = Line(self._listener.accept()[0])
                self._strangers.append(line)
                self._selector.register(line, selectors.EVENT_READ, line)
            return
        line = key.data
        for message in line.receive():
            node = next((node for node in self._nodes if node.line is line), None)
            if node is not None:
                self._answer(node, message)
            elif message["kind"] == "hello":
                self._admit(line, message)

    def _admit(self, line: Line, hello: Message) -> None:
        rules = self._rules
        number, ranks = hello.get("number"), hello.get("ranks")
        address = str(hello.get("address"))
        if (
            not isinstance(number, int)
            or not isinstance(ranks, int)
            or hello.get("job") != rules.job
        ):
            return line.send("refused", reason=f"this is job {rules.job!r}, another one or attempt")
        if self._finished:
            return line.send("finished")
        here = {node.number for node in self._nodes}
        if not rules.elastic and (self._running or number in here):
            return line.send("refused", reason="a former attempt of this job still runs here")
        if len(self._nodes) >= rules.max_nodes:
            return line.send("refused", reason=f"all {rules.max_nodes} nodes are there")
        self._strangers.remove(line)
        node = _Node(line, number, address, ranks, ready=True)
        self._change(f"{node.name} joined", lost=False)
        self._nodes.append(node)
        return None

    def _answer(self, node: _Node, message: Message) -> None:
        match message["kind"]:
            case "ready":
                node.ready = True
                clean = message.get("clean") is True
                self._change(f"the ranks of {node.name} ended", lost=not clean)
            case "bye":
                self._release(node, done=message.get("done") is True)

    def _release(self, node: _Node, *, done: bool) -> None:
        """See a node off that says farewell: its run is done, or it was told to stop."""
        self._forget(node)
        self._finished = self._finished or done
        if done or not self._rules.elastic:
            self._tell("over", reason=f"{node.name} has ended its part")
        else:
            self._change(f"{node.name} left", lost=False)

    def _tell(self, kind: str, **fields: object) -> None:
        for node in self._nodes:
            node.line.send(kind, **fields)

    def _drop_the_lost(self, now: float) -> None:
        for line in [*self._strangers]:
            if line.closed or now - line.heard > self._rules.peer_timeout:
                self._strangers.remove(line)
                self._hang_up(line)
        for node in [*self._nodes]:
            silent = now - node.line.heard
            if node.line.closed:
                self._lose(node, f"{node.name} is gone", silent=False)
            elif silent > self._rules.peer_timeout:
                self._lose(node, f"{node.name} has been silent for {silent:.1f} s", silent=True)

    def _lose(self, node: _Node, reason: str, *, silent: bool) -> None:
        self._forget(node)
        if self._rules.elastic:
            self._change(reason, lost=True)
        elif self._running and not self._finished:
            self._tell("broken", reason=reason, silent=silent)

    def _forget(self, node: _Node) -> None:
        self._nodes.remove(node)
        self._hang_up(node.line)

    def _hang_up(self, line: Line) -> None:
        self._selector.unregister(line)
        line.close()

    def _change(self, reason: str, *, lost: bool) -> None:
        """Have the nodes of a running round stop their ranks and come to the next one."""
        if not self._running or self._finished:
            return
        self._running = False
        for node in self._nodes:
            if not node.ready:
                node.line.send("change", reason=reason, lost=lost)

    def _start_when_all_are_ready(self, now: float) -> None:
        nodes, rules = self._nodes, self._rules
        if self._running or len(nodes) < rules.min_nodes or not all(n.ready for n in nodes):
            return
        newest = max(node.arrived for node in nodes)
        # Only the first time: later ones are not worth keeping everybody waiting for.
        if not self._round and len(nodes) < rules.max_nodes and now - newest < rules.last_call:
            return
        self._round += 1
        self._running = True
        nodes.sort(key=lambda node: (node.number, node.arrived))
        port = self._open_store()
        names = [node.name for node in nodes]
        ranks = [node.ranks for node in nodes]
        for rank, node in enumerate(nodes):
            node.ready = False
            place = {"number": self._round, "rank": rank, "store": port}
            node.line.send("start", nodes=names, ranks=ranks, **place)
