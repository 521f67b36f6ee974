"""Hybrid sharded data parallel: sharded within a group of ranks, replicated over the groups.

Put a group where the fast links are, e.g. the GPUs of a node; only gradients cross between groups.

    TRAINER_MODE=hsdp TRAINER_MESH=dp_replicate=2,dp_shard=2 torchrun --nproc-per-node 4 -m trainer
"""

from trainer.strategies.fsdp import build

__all__ = ["build"]
