"""Which nodes take part in a job, and when its ranks start: the decisions of the rendezvous server.

RENDEZVOUS.md has a drawing of the states and a table of the messages. Nothing here waits, reads a
clock or uses the network, so every order of events can be tested.

    membership = Membership(rules, send)
    membership.join(node, now=time.monotonic())
    membership.start_if_ready(time.monotonic())
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass


class State(enum.Enum):
    """WAITING for nodes, RUNNING a round, ENDING or STOPPING one; FINISHED and BROKEN are final."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    ENDING = enum.auto()  # a node has finished; the ranks of the others may still need each other
    STOPPING = enum.auto()  # a node of a job of fixed size was stopped; the others end, too
    FINISHED = enum.auto()  # the server's own ranks have finished
    BROKEN = enum.auto()  # a job of fixed size has lost a node


@dataclass(frozen=True)
class Rules:
    """The rules of a job. `peer_timeout` and `last_call` are in seconds."""

    min_nodes: int
    max_nodes: int
    elastic: bool
    peer_timeout: float
    last_call: float


@dataclass(eq=False)
class Node:
    """A node that has joined. `own`: the server runs on it. `port`: of its rank 0 or its store."""

    number: int
    ranks: int
    name: str
    own: bool = False
    ready: bool = False
    in_round: bool = False
    port: int = 0


class Membership:
    """The nodes of a job and the state of its round; `send(nodes, kind, **fields)` informs them."""

    def __init__(self, rules: Rules, send: Callable[..., None]) -> None:
        self.state = State.WAITING
        self.nodes: dict[Node, None] = {}  # in the order of joining
        self._rules = rules
        self._send = send
        self._round = 0  # the number of the newest round
        self._numbers: set[int] = set()  # node numbers, of a job of fixed size
        self._not_ready = 0
        self._last_joined = 0.0

    @property
    def full(self) -> bool:
        """Whether no node can join, because a job of fixed size is running."""
        return not self._rules.elastic and self.state is State.RUNNING

    def join(self, node: Node, *, now: float) -> str:
        """Let a node join and return "", or return why not. The ranks of a running round then stop."""
        rules = self._rules
        if self.state not in (State.WAITING, State.RUNNING):
            return "the run is ending"
        if self.full:
            return "an earlier attempt of this job still runs here"
        if not rules.elastic and node.number in self._numbers:
            return f"another node with PET_NODE_RANK={node.number}, or an earlier attempt, is connected"
        if not rules.elastic and node.number >= rules.max_nodes:
            return f"this job has {rules.max_nodes} nodes, numbered from 0"
        if len(self.nodes) >= rules.max_nodes:
            return f"all {rules.max_nodes} nodes have joined"
        self._change(f"{node.name} joined", lost=False)
        self.nodes[node] = None
        self._numbers.add(node.number)
        self._not_ready += not node.ready
        self._last_joined = now
        return ""

    def ready(self, node: Node, *, clean: bool, port: int) -> None:
        """Note that a node's ranks can start. If it was in a round, all others go to the next one.

        Without a node that has finished there is no next one.
        """
        self._not_ready -= not node.ready
        node.ready, node.port = True, port
        if node.in_round:
            node.in_round = False
            self._change(f"the ranks of {node.name} ended", lost=not clean)
        if self.state is State.ENDING:
            self._break(f"the ranks of {node.name} ended", silent=False)

    def leave(self, node: Node, *, done: bool) -> None:
        """Remove a node that has finished the run, or was stopped.

        Its end counts for the other nodes only if it was in the round. It never counts for the server's
        node: only the ranks on that node finish the run.
        """
        self._remove(node)
        ends = node.in_round and (done or not self._rules.elastic)
        if node.own and done:
            self.state = State.FINISHED
        elif not ends:
            self._change(f"{node.name} left", lost=False)
            return
        elif self.state in (State.WAITING, State.RUNNING, State.ENDING):
            self.state = State.ENDING if done else State.STOPPING
        others = [other for other in self.nodes if not (done and other.own)]
        how = "has ended its part" if done else "was stopped"
        over = self.state is not State.ENDING
        self._send(
            others, "peer_finished", reason=f"{node.name} {how}", stopped=not done, over=over
        )

    def lose(self, node: Node, reason: str, *, silent: bool) -> None:
        """Remove a node whose connection has ended or is silent."""
        self._remove(node)
        if self._rules.elastic:
            self._change(reason, lost=True)
        elif self.state in (State.RUNNING, State.ENDING):
            self._break(reason, silent=silent)

    def start_if_ready(self, now: float) -> float:
        """Start a round if enough nodes are ready; return after how many seconds to call this again."""
        rules, nodes = self._rules, self.nodes
        if self.state is not State.WAITING or self._not_ready or len(nodes) < rules.min_nodes:
            return float("inf")
        # Only before the first round: later, all nodes would have to wait for one more.
        if self._round == 0 and len(nodes) < rules.max_nodes:
            left = self._last_joined + rules.last_call - now
            if left > 0:
                return left
        first, *others = sorted(nodes, key=lambda node: (not node.own, node.number))
        if not first.own:  # the server's node has left, and the server will end
            return float("inf")
        self._round += 1
        self.state = State.RUNNING
        self._not_ready = len(nodes)
        world_size, first_rank = sum(node.ranks for node in nodes), 0
        for index, node in enumerate([first, *others]):
            node.ready, node.in_round = False, True
            self._send(
                [node],
                "start",
                round=self._round,
                node=index,
                nodes=len(nodes),
                first_rank=first_rank,
                world_size=world_size,
                port=first.port,
            )
            first_rank += node.ranks
        return float("inf")

    def _break(self, reason: str, *, silent: bool) -> None:
        """Tell all nodes that there will be no next round."""
        self.state = State.BROKEN
        self._send(self.nodes, "peer_lost", reason=reason, silent=silent)

    def _change(self, reason: str, *, lost: bool) -> None:
        """Tell the nodes of a running round to stop their ranks and get ready for the next round."""
        if self.state is not State.RUNNING:
            return
        self.state = State.WAITING
        running = [node for node in self.nodes if node.in_round]
        self._send(running, "membership_changed", reason=reason, lost=lost)

    def _remove(self, node: Node) -> None:
        del self.nodes[node]
        self._numbers.discard(node.number)
        self._not_ready -= not node.ready
