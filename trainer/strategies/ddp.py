"""Distributed data parallel: a replica per rank, gradients averaged while they are computed.

TRAINER_MODE=ddp torchrun --nproc-per-node 2 -m trainer
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.data import Batch
from trainer.strategies import Context, Strategy, accumulate, clip, inference, single


def build(model: nn.Module, context: Context) -> Strategy:
    runtime = context.runtime
    if runtime.mesh is None:  # a world of one has no group to average over
        return single.build(model, context)
    replica = DistributedDataParallel(
        model,
        device_ids=None if runtime.device.type == "cpu" else [runtime.device.index],
        process_group=runtime.mesh.get_group("dp_replicate"),
        gradient_as_bucket_view=True,
    )
    parameters = list(model.parameters())
    replicas = runtime.sizing.batches.replicas

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        # DDP averages over the replicas, while the loss is a mean over the whole global batch.
        return accumulate(
            replica, micro_batches, context, scale=replicas / weight, unsynced=replica.no_sync
        )

    return Strategy(
        module=replica,
        step=step,
        clip=lambda norm: clip(parameters, norm),
        forward=inference(model, context),
    )
