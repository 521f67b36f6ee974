"""Distributed data parallel with the optimiser's state split over the ranks.

Every rank updates its share of the parameters and sends them to the others (ZeRO stage 1,
Rajbhandari et al., 2020), by torch's ZeroRedundancyOptimizer.

    TRAINER_MODE=ddp-zero1 torchrun --nproc-per-node 2 -m trainer
"""

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from trainer.distributed import optim
from trainer.strategies import Context, Strategy, ddp, single


def build(model: nn.Module, context: Context) -> Strategy:
    mesh = context.runtime.mesh
    if mesh is None:  # a world of one has nothing to split over
        return single.build(model, context)
    kind, arguments = optim.recipe(context.settings)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), kind, process_group=mesh.get_group("dp_replicate"), **arguments
    )
    # Its own state dict would first gather every shard on one rank; each rank saves its own instead.
    return ddp.over(model, mesh, context, optimizer=optimizer, saved_optimizer=optimizer.optim)
