"""What ddp sends for the gradients with TRAINER_COMM_HOOK, by torch's communication hooks.

`fp16` and `bf16` halve the bytes. `powersgd` sends two thin matrices for each gradient (Vogels et al.,
2019) and keeps the error for the next step. It starts after the warm-up of the learning rate, because
gradients change fast before. Its memory is not in the checkpoint: a resumed run starts with none.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainer.config.settings import Settings

_RANK = 2  # of the two matrices


def register(
    replica: DistributedDataParallel, group: dist.ProcessGroup, settings: Settings
) -> None:
    """Make `replica` average its gradients as TRAINER_COMM_HOOK says."""
    if settings.comm_hook == "fp16":
        replica.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif settings.comm_hook == "bf16":
        replica.register_comm_hook(group, _bf16)
    elif settings.comm_hook == "powersgd":
        # DDP rebuilds its buckets after the first step; the hook must start later.
        start = max(2, settings.warmup_steps)
        state = PowerSGDState(group, matrix_approximation_rank=_RANK, start_powerSGD_iter=start)
        replica.register_comm_hook(state, powerSGD_hook)


def count_in_dry_run(replica: DistributedDataParallel, group: dist.ProcessGroup) -> None:
    """Reduce buckets in Python, where a dry run counts them; DDP's own C++ finds no other ranks."""

    def all_reduce(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:
        dist.all_reduce(bucket.buffer(), group=group)
        done: Future[Tensor] = Future()
        done.set_result(bucket.buffer())
        return done

    replica.register_comm_hook(group, all_reduce)


def _bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:
    # DDP refuses torch's own by its name wherever NCCL is not built in, though gloo can do it.
    return default_hooks.bf16_compress_hook(group, bucket)
