"""What a node learns from the rendezvous: the rounds it takes part in, and what ends them.

client.next_round(...)          # Round(number=1, node=0, nodes=2, ...)
client.peer_lost                # MembershipEvent("node 1 (10.0.0.2) is gone", ...), or None
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """Round `number` as this node sees it; rank 0, or its store, listens at `address` and `port`."""

    number: int
    node: int
    nodes: int
    first_rank: int
    world_size: int
    address: str
    port: int


@dataclass(frozen=True)
class MembershipEvent:
    """A reason to stop the ranks here. `lost`: they cannot save, because a rank they need is gone."""

    reason: str
    lost: bool
    since: float  # monotonic
    silent: bool = False  # the peer stopped answering, with its connection still open
    stopped: bool = False  # the peer was asked to end, and the ranks here should end, too
    over: bool = False  # the server may now end without having failed
