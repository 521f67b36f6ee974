"""Distributed data parallel with the optimiser's state sharded over the ranks.

Every rank updates its share of the parameters and sends them to the others (ZeRO stage 1,
Rajbhandari et al., 2020), by torch's ZeroRedundancyOptimizer.

    TRAINER_MODE=ddp-zero1 torchrun --nproc-per-node 2 -m trainer
"""

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from trainer.distributed import optim
from trainer.strategies import Context, Strategy, ddp


def build(model: nn.Module, context: Context) -> Strategy:
    kind, arguments = optim.recipe(context.settings)
    group = context.mesh.get_group("dp_replicate")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, process_group=group, **arguments)
    # Its own state dict would first gather every shard on one rank; each rank saves its own instead.
    return ddp.replicate(model, context, optimizer=optimizer, saved_optimizer=optimizer.optim)
