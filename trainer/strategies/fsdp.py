"""Fully sharded data parallel: parameters, gradients and optimiser state split over the ranks.

Each block gathers its parameters just before it computes and frees them afterwards (ZeRO stage 3,
Rajbhandari et al., 2020). It uses torch's `fully_shard`. With a mesh that also replicates, it is hsdp.

    TRAINER_MODE=fsdp torchrun --nproc-per-node 2 -m trainer
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.distributed.precision import half
from trainer.distributed.tensors import digest
from trainer.models.blocks import blocks, is_chosen, tied
from trainer.strategies import Context, Strategy, accumulate, broadcast_buffers, single

_TOGETHER = 2**18  # parameters of small blocks: 1 MiB in float32

# Norms that keep running statistics.
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
    """Return the axes for fully_shard: dp_shard, and dp_replicate before it if its size is above 1."""
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

    Raises Fault(64) for a scalar parameter, which torch's fully_shard does not support. In the first
    training step Fault(64) if the forward pass changes parameters.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise Fault(
                Exit.CONFIG,
                f"task {settings.task}: its parameter {name} is a scalar, which cannot be sharded; "
                "give it shape (1,), or use mode ddp",
            )
    # reduce_dtype is set, because its default changed in torch 2.15 from param_dtype to the gradient's.
    precision = exact = MixedPrecisionPolicy()
    if dtype := half(settings):
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    # Running statistics stay float32, and a norm's weights must have the same dtype.
    norms = [m for m in model.modules() if dtype and isinstance(m, _NORMS) and m.affine]
    offload = OffloadPolicy()
    if settings.cpu_offload:
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu")
    for parameter in model.parameters():
        if not parameter.is_contiguous():  # fully_shard refuses it
            parameter.data = parameter.data.contiguous()
    paths = {module: path for path, module in model.named_modules()}
    for module in dict.fromkeys((*norms, *_alone(model), model)):
        # In compiled code a hook would be a part of it, and the tensors of a dry run have no values.
        if not settings.compile and dist.get_backend(mesh.get_group(0)) != "fake":
            _refuse_changes(module, paths[module], settings)
        fully_shard(
            module,
            mesh=mesh,
            # None, torch's default: False for the root, with which the backward pass begins.
            reshard_after_forward=None if settings.reshard else False,
            mp_policy=exact if module in norms else precision,
            offload_policy=offload,
        )
    return cast("FSDPModule", model)  # fully_shard changes the class in place


def _refuse_changes(module: nn.Module, path: str, settings: Settings) -> None:
    """Raise Fault(64) if the first forward pass changes parameters that are gathered for `module`.

    Call it before fully_shard, whose hook after a forward pass drops what has been gathered.
    """
    before: dict[str, tuple[int, float]] = {}

    def digests() -> dict[str, tuple[int, float]]:
        return {
            name: digest(parameter.detach())
            for name, parameter in module.named_parameters(prefix=path)
            if not isinstance(parameter, DTensor)
        }

    def begin(*_: object) -> None:
        # Not module.training: a stage is not in the model, whose eval() does not reach it.
        before.update(digests() if torch.is_grad_enabled() else {})

    def end(*_: object) -> None:
        for name, found in digests().items() if before else ():
            # A block inside may stay gathered after its forward pass; it has checked its own.
            if name in before and found != before[name]:
                raise Fault(
                    Exit.CONFIG,
                    f"task {settings.task}: the forward pass changes the parameter {name}, which mode "
                    f"{settings.mode} gathers and then drops, so that the change is lost; use mode ddp, "
                    "or a buffer",
                )
        if before:
            before.clear()
            for handle in handles:
                handle.remove()

    handles = [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]


def _alone(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that are gathered separately. All other parameters are gathered together.

    Parameters that several modules share are gathered together, because fully_shard refuses them in two
    modules. So are the smallest blocks, because a separate gather costs more time than it saves memory.
    If parameters have several dtypes, small blocks are also gathered separately, because parameters that
    are gathered together must have one dtype.
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
