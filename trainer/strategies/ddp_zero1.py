"""Distributed data parallel with the optimiser's state sharded over the ranks.

Every rank updates its share of the parameters and sends them to all other ranks (ZeRO stage 1,
Rajbhandari et al., 2020). It uses torch's ZeroRedundancyOptimizer.

    TRAINER_MODE=ddp-zero1 torchrun --nproc-per-node 2 -m trainer
"""

from functools import partial
from typing import Any

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from trainer.distributed import optim
from trainer.strategies import Context, Strategy, ddp


def build(model: nn.Module, context: Context) -> Strategy:
    settings, own = context.settings, context.own
    kind, arguments = optim.constructor(settings, own)
    # Bound, because each argument that it gets itself becomes an option of every group.
    made: Any = partial(kind, **arguments)
    group = context.mesh.get_group("dp_replicate")
    groups: Any = optim.groups_of(model, settings, own)
    optimizer = ZeroRedundancyOptimizer(groups, made, process_group=group)
    optim.zero_momentum(optimizer.optim)
    # ZeroRedundancyOptimizer's state dict first gathers all shards on one rank. Each rank saves its own.
    return ddp.replicate(model, context, optimizer=optimizer, saved_optimizer=optimizer.optim)
