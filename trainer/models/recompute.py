"""Activation checkpointing: a block keeps its input alone, and computes the rest anew for backward.

Less memory for a second forward pass (Chen et al., 2016). The names of parameters stay as they are.

    TRAINER_ACTIVATION_CHECKPOINTING=true python -m trainer
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainer.models.blocks import blocks

_Context = contextlib.AbstractContextManager[None]


def recompute_blocks(model: nn.Module) -> None:
    """Make every block of the model recompute, in place."""
    for block in list(blocks(model)):
        # A class of its own, not a wrapper around it, nor a method of the instance: names stay, and a
        # replica of nn.DataParallel runs itself instead of the module it was copied from.
        kind = type(block)
        block.__class__ = type(kind.__name__, (_Recomputed, kind), {"__module__": kind.__module__})


class _Recomputed(nn.Module):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        compute = partial(super().forward, **named)
        if not (self.training and torch.is_grad_enabled()):
            return compute(*inputs)
        if not any(True for _ in self.buffers()):  # which torch.compile could not follow
            return checkpoint(compute, *inputs, use_reentrant=False)
        contexts = partial(_contexts, self)
        return checkpoint(compute, *inputs, use_reentrant=False, context_fn=contexts)


def _contexts(block: nn.Module) -> tuple[_Context, _Context]:
    """Return what the first forward pass runs in, and what the second does."""
    return contextlib.nullcontext(), _with_buffers_kept(block)


@contextlib.contextmanager
def _with_buffers_kept(block: nn.Module) -> Iterator[None]:
    """Recompute without a trace: a BatchNorm would count the batch twice otherwise."""
    kept = [buffer.clone() for buffer in block.buffers()]
    try:
        yield
    finally:
        for buffer, before in zip(block.buffers(), kept, strict=True):
            buffer.copy_(before)
