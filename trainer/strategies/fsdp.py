"""Fully sharded data parallel: parameters, gradients and optimiser state split over the ranks.

Each block gathers its parameters just before it computes and frees them after (ZeRO stage 3,
Rajbhandari et al., 2020), by torch's `fully_shard`. A mesh that also replicates makes it hsdp.

    TRAINER_MODE=fsdp torchrun --nproc-per-node 2 -m trainer
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.distributed.precision import half
from trainer.models.blocks import blocks, is_chosen, tied
from trainer.strategies import Context, Strategy, accumulate, broadcast_buffers, single

_TOGETHER = 2**18  # parameters of small blocks: 1 MiB in float32

# Those that keep running statistics.
_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


def build(model: nn.Module, context: Context) -> Strategy:
    sharded = shard(model, data_mesh(context.mesh), context.settings)
    replicas = context.runtime.sizing.batches.replicas

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        # The reduce-scatter averages over the replicas, while the loss is a mean over the batch.
        scale = replicas / weight
        return accumulate(model, micro_batches, context, scale=scale, no_sync=no_sync(sharded))

    strategy = single.build(model, context)
    return replace(strategy, step=step, synchronize=lambda: broadcast_buffers(model, context.mesh))


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the axes for fully_shard: dp_shard, and dp_replicate before it where ranks replicate."""
    replicated = mesh["dp_replicate"].size() > 1
    return mesh["dp_replicate", "dp_shard"] if replicated else mesh["dp_shard"]


def no_sync(sharded: FSDPModule) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return the context in which the backward passes of `sharded` do not communicate gradients."""

    @contextlib.contextmanager
    def off() -> Iterator[None]:
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)

    return off


def shard(model: nn.Module, mesh: DeviceMesh, settings: Settings) -> FSDPModule:
    """Shard `model` over `mesh`, block by block, so that few parameters are whole at once.

    Raises Fault(64) for a scalar parameter, which torch's fully_shard does not support.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise Fault(
                Exit.CONFIG,
                f"task {settings.task}: its parameter {name} is a scalar, which cannot be sharded; "
                "give it shape (1,), or use mode ddp",
            )
    # reduce_dtype is given: its default changed with torch 2.15, from param_dtype to the gradient's.
    precision = exact = MixedPrecisionPolicy()
    if dtype := half(settings):
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    # Running statistics stay float32, and a norm's weights must have their type.
    norms = [m for m in model.modules() if dtype and isinstance(m, _NORMS) and m.affine]
    offload = OffloadPolicy()
    if settings.cpu_offload:
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")
    for module in dict.fromkeys((*norms, *_alone(model), model)):
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=settings.reshard,
            mp_policy=exact if module in norms else precision,
            offload_policy=offload,
        )
    return cast("FSDPModule", model)  # fully_shard changes the class in place


def _alone(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that are gathered each by itself; all else is gathered for the whole model.

    All else has what several modules use, since fully_shard refuses it in two of them, and the smallest
    blocks: to gather so little by itself costs more time than it saves memory. Not where parameters
    have several types: what is gathered together must be of one.
    """
    shared = tied(model)
    alone = [block for block in blocks(model) if shared.keys().isdisjoint(block.parameters())]
    if len({parameter.dtype for parameter in model.parameters()}) > 1:
        return alone
    sizes = {block: sum(parameter.numel() for parameter in block.parameters()) for block in alone}
    together = 0
    for block in sorted(alone, key=sizes.__getitem__):
        together += sizes[block]
        if together > _TOGETHER or is_chosen(block):
            break
        alone.remove(block)
    return alone
