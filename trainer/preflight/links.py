"""Check the links between ranks: whether numbers arrive as they were sent, and how fast.

Call exchange(runtime) on every rank, then find_faulty(...) with the results of all ranks.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainer.distributed.runtime import Runtime

_ELEMENTS = 2**20  # float32 numbers that are summed over all ranks and sent to the next: 4 MiB
_ROUNDS = 3


@dataclass(frozen=True)
class Exchange:
    """The results of one rank. `wrong` lists the ranks whose numbers arrived here changed.

    Speeds are in bytes per second: of the sum over all ranks, and of receiving from the rank before.
    `clock` is this machine's time at a moment that is the same on all ranks, to within `within` seconds.
    """

    wrong: tuple[int, ...]
    sum_speed: float
    link_speed: float
    clock: float
    within: float


def exchange(runtime: Runtime) -> Exchange | None:
    """Sum known numbers over all ranks, pass them round the ring, and compare clocks.

    All ranks call it together. Returns None for a world size of 1, which has no links.
    """
    if runtime.control is None:
        return None
    rank, world = runtime.rank, runtime.world_size
    # Every rank fills one row and leaves the others 0, so a wrong sum shows whose numbers are wrong.
    # Sums of integers this small are exact in float32, in any order.
    row = torch.arange(max(1, _ELEMENTS // world), device=runtime.device) % 1021
    expected = (row + torch.arange(world, device=runtime.device).unsqueeze(1)).float()
    wrong: set[int] = set()
    before = (rank - 1) % world
    sums, links = [], []
    for _ in range(_ROUNDS):
        parts = torch.zeros_like(expected)
        parts[rank] = expected[rank]
        began = _now(runtime)
        dist.all_reduce(parts)
        sums.append(_now(runtime) - began)
        wrong |= {row for row in range(world) if not torch.equal(parts[row], expected[row])}
        outgoing, incoming = expected + rank, torch.empty_like(expected)
        began = _now(runtime)
        transfers = [
            dist.P2POp(dist.isend, outgoing, (rank + 1) % world),
            dist.P2POp(dist.irecv, incoming, before),
        ]
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
        links.append(_now(runtime) - began)
        if not torch.equal(incoming, expected + before):
            wrong.add(before)
    size = expected.numel() * expected.element_size()
    began = time.monotonic()
    dist.barrier(group=runtime.control)
    clock, within = time.time(), time.monotonic() - began
    return Exchange(tuple(sorted(wrong)), size / min(sums), size / min(links), clock, within)


def _now(runtime: Runtime) -> float:
    if runtime.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.monotonic()


def find_faulty(seen: Sequence[Sequence[int]]) -> set[int]:
    """Return the faulty ranks; `seen[r]` lists the ranks whose numbers arrived wrong at rank r.

    If a rank's numbers arrive wrong at more than half of the others, it sends them wrong. A rank that
    gets wrong numbers which most others get right receives them wrong. Of two ranks, the sender is
    faulty.
    """
    senders = set()
    for rank in range(len(seen)):
        votes = [rank in wrong for observer, wrong in enumerate(seen) if observer != rank]
        if 2 * sum(votes) > len(votes):
            senders.add(rank)
    receivers = {observer for observer, wrong in enumerate(seen) if set(wrong) - senders}
    return senders | receivers
