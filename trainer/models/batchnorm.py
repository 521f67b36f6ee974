"""BatchNorm over the whole global batch instead of each rank's share of it, on GPUs.

TRAINER_SYNC_BATCHNORM=true TRAINER_MODE=ddp torchrun --nproc-per-node 2 -m trainer
"""

import torch
import torch.distributed as dist
from torch import nn

from trainer.config.exits import Exit, Fault


def synchronise(model: nn.Module, group: dist.ProcessGroup, device: torch.device) -> nn.Module:
    """Return the model with each BatchNorm's statistics taken over all ranks of `group`.

    Names and initial values stay. Raises Fault(64) on a CPU.
    """
    if device.type == "cpu":
        raise Fault(
            Exit.CONFIG,
            "TRAINER_SYNC_BATCHNORM=true: torch's SyncBatchNorm runs on GPUs only, and this rank is on "
            "cpu; leave it out",
        )
    synced: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model, group)
    return synced
