"""Hybrid sharded data parallel: sharded within a group of ranks, replicated over the groups.

Use a group with fast links, e.g. the GPUs of a node. Only gradients are sent between groups.

    TRAINER_MODE=hsdp TRAINER_MESH=dp_replicate=2,dp_shard=2 torchrun --nproc-per-node 4 -m trainer
"""

from trainer.strategies.fsdp import build

__all__ = ["build"]
