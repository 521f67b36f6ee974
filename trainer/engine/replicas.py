"""Check that the model's replicas are still equal, bit by bit, by a fingerprint of each.

Averaged gradients keep replicas equal. A fault in memory, on a link or in the code makes them differ,
and training would continue without an error.

    TRAINER_FINGERPRINT_STEPS=100 TRAINER_MODE=ddp torchrun --nproc-per-node 2 -m trainer
"""

from collections import Counter
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config.exits import Exit, Fault
from trainer.distributed.messages import from_all
from trainer.distributed.tensors import local_part
from trainer.engine.run import Run

_AXIS = "dp_replicate"
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def compare(run: Run) -> None:
    """Compare this rank's parameters, or its shards, with those of the ranks that hold the same ones.

    All ranks call it together. Raises Fault(70) naming the first tensor that differs and the rank. A
    retry starts from a checkpoint, where all replicas are equal.
    """
    mesh = run.runtime.mesh
    if mesh is None or mesh[_AXIS].size() == 1:
        return
    group = mesh.get_group(_AXIS)
    names, tensors = zip(*run.strategy.module.named_parameters(), strict=True)
    own = torch.stack([fingerprint(tensor) for tensor in tensors])
    own = own.to(mesh.device_type)  # with cpu_offload the shards are on the CPU
    extremes = torch.cat([own, ~own])  # the largest ~x is the smallest x: one collective for both
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
    highest, lowest = extremes[: len(own)], ~extremes[len(own) :]
    differing = (highest != lowest).nonzero().flatten().tolist()
    seen = None
    if differing:
        first, ranks = differing[0], dist.get_process_group_ranks(group)
        seen = (first, names[first].removeprefix("module."), ranks, int(own[first]))
    everyones = from_all(seen, run.runtime, tuple[int, str, list[int], int] | None)
    if not any(everyones):
        return
    _, name, ranks, _ = min(seen for seen in everyones if seen)
    prints = {rank: seen[3] for rank, seen in enumerate(everyones) if seen and rank in ranks}
    raise Fault(
        Exit.CODE,
        f"step {run.step}: the replicas differ, first in {name}: {_describe(prints)}; a fault in "
        "memory, on a link or in the code",
    )


def fingerprint(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's bits, read as integers; shape (). A DTensor counts its local part."""
    local = local_part(tensor)
    bits = local.detach().contiguous().view(_BITS[local.element_size()])
    return bits.sum(dtype=torch.int64)


def _describe(prints: Mapping[int, int]) -> str:
    common, count = Counter(prints.values()).most_common(1)[0]
    if count * 2 <= len(prints):
        return f"ranks {', '.join(map(str, prints))} do not agree, and there is no majority"
    odd = [rank for rank, fingerprint in prints.items() if fingerprint != common]
    return f"rank {', '.join(map(str, odd))} differs from the {count} other ranks that hold it"
