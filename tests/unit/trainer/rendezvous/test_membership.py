"""The server's decisions for any order of events, with up to five nodes, as a hypothesis state machine.

Every run ends in a round in which all nodes agree, or in an event that ends it for each of them.
"""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trainer.rendezvous.membership import Membership, Node, Rules, State

NODES = 5
LAST_CALL = 5.0
FINAL = (State.ENDING, State.STOPPING, State.FINISHED, State.BROKEN)


class Machine(RuleBasedStateMachine):
    """Nodes that join, get ready, leave, are lost or become silent, and the messages to each."""

    @initialize(
        low=st.integers(1, NODES),
        more=st.integers(0, NODES),
        elastic=st.booleans(),
        own=st.integers(0, NODES),
    )
    def begin(self, low: int, more: int, elastic: bool, own: int) -> None:  # noqa: FBT001
        high = min(NODES, low + more) if elastic else low
        self.allowed = Rules(low, high, elastic, 3, LAST_CALL)
        self.membership = Membership(self.allowed, self.send)
        self.now = 0.0
        self.rounds = 0
        self.messages = 0
        self.running: dict[Node, dict[str, Any]] = {}  # nodes whose ranks run, with their round
        self.sent_the_end: set[Node] = set()
        self.state = State.WAITING
        self.own = Node(own if elastic else 0, 1, "the server's node", own=True)
        assert self.membership.join(self.own, now=0) == ""

    def send(self, nodes: Any, kind: str, /, **fields: Any) -> None:
        for node in [*nodes]:
            assert node in self.membership.nodes, "a message to a node that is gone"
            self.messages += 1
            if kind == "start":
                assert node not in self.running, "a round before the ranks of the last have ended"
                self.running[node] = fields
            elif kind == "membership_changed":
                assert node in self.running
            else:
                assert kind in ("peer_lost", "peer_finished")
                self.sent_the_end.add(node)

    @property
    def present(self) -> list[Node]:
        return [*self.membership.nodes]

    def of(self, index: int) -> Node:
        return self.present[index % len(self.present)]

    @rule(number=st.integers(0, NODES + 1))
    def join(self, number: int) -> None:
        node = Node(number, 1 + number % 2, f"node {number}")
        numbers = {other.number for other in self.present}
        state, full = self.membership.state, len(self.present) >= self.allowed.max_nodes
        refusal = self.membership.join(node, now=self.now)
        fixed = not self.allowed.elastic
        late = fixed and (state is State.RUNNING or number in numbers)
        wrong = fixed and number >= self.allowed.max_nodes
        assert bool(refusal) == (state in FINAL or full or late or wrong), refusal

    @precondition(lambda self: self.present)
    @rule(index=st.integers(0, NODES), clean=st.booleans())
    def ready(self, index: int, clean: bool) -> None:  # noqa: FBT001
        node = self.of(index)
        self.running.pop(node, None)
        ending = self.membership.state is State.ENDING
        self.membership.ready(node, clean=clean, port=1 + node.number)
        if ending:
            assert {*self.present} <= self.sent_the_end, "a node waits for a round that never comes"

    @precondition(lambda self: self.present)
    @rule()
    def all_ready(self) -> None:
        """What must happen if nothing else does."""
        for index in range(len(self.present)):
            if not self.present[index].ready:
                self.ready(index, clean=True)
        self.tick(LAST_CALL + 1)

    @precondition(lambda self: self.own in self.present)
    @rule()
    def fill(self) -> None:
        """All nodes that are missing join, and a round starts."""
        for number in range(self.allowed.max_nodes):
            self.join(number)
        self.all_ready()

    @precondition(lambda self: len(self.present) > 1)
    @rule(index=st.integers(1, NODES), done=st.booleans())
    def leave(self, index: int, done: bool) -> None:  # noqa: FBT001
        others = [node for node in self.present if not node.own]
        if not others:
            return
        node = others[index % len(others)]
        took_part = node in self.running
        self.running.pop(node, None)
        finished = self.membership.state is State.FINISHED
        self.membership.leave(node, done=done)
        assert (self.membership.state is State.FINISHED) == finished, (
            "another node finished the run"
        )
        if done and not took_part:
            assert self.membership.state is not State.ENDING or self.sent_the_end or finished

    @precondition(lambda self: len(self.present) > 1)
    @rule(index=st.integers(1, NODES), silent=st.booleans())
    def lose(self, index: int, silent: bool) -> None:  # noqa: FBT001
        others = [node for node in self.present if not node.own]
        if others:
            node = others[index % len(others)]
            self.running.pop(node, None)
            needs = (State.RUNNING, State.ENDING)  # states in which ranks may need each other
            broken = not self.allowed.elastic and self.membership.state in needs
            self.membership.lose(node, f"{node.name} is gone", silent=silent)
            if broken:
                assert self.membership.state is State.BROKEN
                assert {*self.present} <= self.sent_the_end

    @precondition(lambda self: self.own in self.present)
    @rule()
    def own_stops(self) -> None:
        """The server's node stops, and soon the server: no round starts without it."""
        self.running.pop(self.own, None)
        self.membership.leave(self.own, done=False)
        for node in self.present:
            self.running.pop(node, None)
            self.membership.ready(node, clean=True, port=1)
        assert self.membership.start_if_ready(self.now + LAST_CALL + 1) == float("inf")
        assert not self.running

    @precondition(lambda self: self.own in self.running)
    @rule()
    def finish(self) -> None:
        """The ranks of the server's node finish: so does the run, for every node."""
        del self.running[self.own]
        self.membership.leave(self.own, done=True)
        assert self.membership.state is State.FINISHED
        assert {*self.present} <= self.sent_the_end
        assert self.membership.start_if_ready(self.now) == float("inf")

    @rule(seconds=st.floats(0, 10))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        started = dict(self.running)
        before = self.messages
        wait = self.membership.start_if_ready(self.now)
        assert wait > 0
        begun = {node: fields for node, fields in self.running.items() if node not in started}
        if not begun:
            assert self.messages == before
            return
        self.rounds += 1
        assert self.messages - before == len(self.present), "one message for each node of a round"
        assert not started, "a round while ranks of the last one run"
        assert {*begun} == {*self.present}
        assert self.allowed.min_nodes <= len(begun) <= self.allowed.max_nodes
        self.agrees([*begun.values()], [*begun])

    def agrees(self, shown: list[dict[str, Any]], nodes: list[Node]) -> None:
        """All nodes get the same round and different places in it; the server's node gets the first."""
        world_size = sum(node.ranks for node in nodes)
        assert {fields["round"] for fields in shown} == {self.rounds}
        assert {fields["world_size"] for fields in shown} == {world_size}
        assert {fields["nodes"] for fields in shown} == {len(nodes)}
        assert len({fields["port"] for fields in shown}) == 1
        assert sorted(fields["node"] for fields in shown) == [*range(len(nodes))]
        ranks = [
            rank
            for fields, node in zip(shown, nodes, strict=True)
            for rank in range(fields["first_rank"], fields["first_rank"] + node.ranks)
        ]
        assert sorted(ranks) == [*range(world_size)]
        assert self.running[self.own]["node"] == 0
        assert shown[0]["port"] == self.own.port

    @invariant()
    def what_is_final_stays(self) -> None:
        if hasattr(self, "state"):
            now = self.membership.state
            if self.state in (State.FINISHED, State.BROKEN):
                assert now in (self.state, State.FINISHED)
            if self.state is State.ENDING:
                assert now in FINAL
            if self.state is State.STOPPING:
                assert now in (State.STOPPING, State.FINISHED)
            self.state = now

    @invariant()
    def never_more_than_allowed(self) -> None:
        assert len(self.present) <= self.allowed.max_nodes
        if not self.allowed.elastic:
            numbers = [node.number for node in self.present]
            assert len({*numbers}) == len(numbers)

    def teardown(self) -> None:
        """Nothing hangs: with enough ready nodes a round starts, unless the run has ended for all."""
        if not hasattr(self, "membership"):
            return
        if self.own not in self.present:
            return
        self.all_ready()
        state = self.membership.state
        if state is State.WAITING:
            assert len(self.present) < self.allowed.min_nodes
        elif state is State.RUNNING:
            assert {*self.running} == {*self.present}
        else:
            others = {node for node in self.present if not node.own}
            assert others <= self.sent_the_end or state is State.ENDING


TestMembership = pytest.mark.slow(Machine.TestCase)
TestMembership.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
