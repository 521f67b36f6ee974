"""Distributed data parallel: a replica per rank; gradients are averaged during the backward pass.

TRAINER_MODE=ddp torchrun --nproc-per-node 2 -m trainer
"""

import contextlib
import re
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.distributed import optim
from trainer.distributed.torch_private import check_all_reduced
from trainer.strategies import (
    Context,
    Strategy,
    accumulate,
    broadcast_buffers,
    clip,
    inference,
)

_RANK = 2  # of the two matrices that powersgd sends


def build(model: nn.Module, context: Context) -> Strategy:
    optimizer = optim.build(model, context.settings, context.own)
    return replicate(model, context, optimizer=optimizer)


def replicate(
    model: nn.Module,
    context: Context,
    *,
    optimizer: Optimizer,
    saved_optimizer: Optimizer | None = None,
) -> Strategy:
    """Return the strategy that averages gradients over the ranks and updates with `optimizer`."""
    runtime, settings, mesh = context.runtime, context.settings, context.mesh
    group = mesh.get_group("dp_replicate")
    replica = DistributedDataParallel(
        model,
        device_ids=None if runtime.device.type == "cpu" else [runtime.device.index],
        process_group=group,
        gradient_as_bucket_view=True,
        init_sync=runtime.backend != "fake",  # a dry run has no other ranks to send the weights to
        bucket_cap_mb=settings.bucket_mb,
        # In a dry run this would read values of fake tensors.
        static_graph=settings.static_graph and runtime.backend != "fake",
        find_unused_parameters=settings.find_unused_parameters and runtime.backend != "fake",
    )
    if runtime.backend == "fake":
        _count_in_dry_run(replica, group, settings)
    else:
        _register_hook(replica, group, settings)
    parameters = list(model.parameters())
    replicas = runtime.sizing.batches.replicas

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        # DDP averages over the replicas, while the loss is a mean over the whole global batch.
        scale = replicas / weight
        with _name_unused_parameters(model):
            loss = accumulate(replica, micro_batches, context, scale=scale, no_sync=replica.no_sync)
            check_all_reduced(replica)
        return loss

    return Strategy(
        module=replica,
        optimizer=optimizer,
        saved_optimizer=saved_optimizer,
        step=step,
        clip=lambda norm: clip(parameters, norm),
        forward=inference(model, context),
        synchronize=lambda: broadcast_buffers(model, mesh),
    )


@contextlib.contextmanager
def _name_unused_parameters(model: nn.Module) -> Iterator[None]:
    """Name the parameters that the loss did not use; torch's error has only numbers (pytorch 43259)."""
    try:
        yield
    except RuntimeError as error:
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        if found is None:
            raise
        names = [name for name, one in model.named_parameters() if one.requires_grad]
        unused = ", ".join(names[int(number)] for number in found[1].split()[:5])
        raise Fault(
            Exit.CONFIG,
            f"no gradient for {unused}: with ddp the loss of every step must depend on every parameter, "
            "on every rank; set TRAINER_FIND_UNUSED_PARAMETERS=true, or requires_grad=False for those",
        ) from error


def _register_hook(
    replica: DistributedDataParallel, group: dist.ProcessGroup, settings: Settings
) -> None:
    """Make `replica` average its gradients as TRAINER_COMM_HOOK says.

    `fp16` and `bf16` halve the bytes. `powersgd` sends two thin matrices for each gradient (Vogels et
    al., 2019) and keeps the error for the next step. It starts after the warm-up of the learning rate,
    because gradients change fast during the warm-up. Its errors are not in the checkpoint, so a resumed
    run starts without them.
    """
    if settings.comm_hook == "fp16":
        replica.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif settings.comm_hook == "bf16":
        replica.register_comm_hook(group, _bf16)
    elif settings.comm_hook == "powersgd":
        # DDP rebuilds its buckets after the first step; the hook must start later.
        start = max(2, settings.warmup_steps)
        state = PowerSGDState(group, matrix_approximation_rank=_RANK, start_powerSGD_iter=start)
        replica.register_comm_hook(state, powerSGD_hook)


def _count_in_dry_run(
    replica: DistributedDataParallel, group: dist.ProcessGroup, settings: Settings
) -> None:
    """Reduce buckets in Python, so that a dry run counts them. DDP's C++ code needs other ranks.

    With `powersgd` it is a step of the warm-up.
    """
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(settings.comm_hook)

    def all_reduce(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:
        dist.all_reduce(bucket.buffer().to(dtype or bucket.buffer().dtype), group=group)
        done: Future[Tensor] = Future()
        done.set_result(bucket.buffer())
        return done

    replica.register_comm_hook(group, all_reduce)


def _bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:
    # Without NCCL, DDP refuses torch's own hook by its name, although gloo can run it.
    return default_hooks.bf16_compress_hook(group, bucket)
