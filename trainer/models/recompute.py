"""Activation checkpointing: a block keeps only its input, and computes the rest again in backward.

Less memory for a second forward pass (Chen et al., 2016). The names of parameters stay.

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


def recompute_blocks(model: nn.Module) -> None:
    """Make every block of the model recompute, in place."""
    classes: dict[type[nn.Module], type[nn.Module]] = {}  # torch.compile has a graph for each class
    for block in blocks(model):
        # A subclass, not a wrapper, which would change names, nor a method of the instance, with which a
        # replica of nn.DataParallel would run the module it was copied from.
        kind = type(block)
        if kind not in classes:
            own = {"__module__": kind.__module__}
            classes[kind] = type(kind.__name__, (_Recomputed, kind), own)
        block.__class__ = classes[kind]


class _Recomputed(nn.Module):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        compute = partial(super().forward, **named)
        if not (self.training and torch.is_grad_enabled()):
            return compute(*inputs)
        if not any(True for _ in self.buffers()):  # torch.compile cannot trace context_fn
            return checkpoint(compute, *inputs, use_reentrant=False)
        return checkpoint(
            compute,
            *inputs,
            use_reentrant=False,
            # of the first forward pass and of the second
            context_fn=lambda: (contextlib.nullcontext(), _restoring_buffers(self)),
        )


@contextlib.contextmanager
def _restoring_buffers(block: nn.Module) -> Iterator[None]:
    """Restore the buffers after the block: a BatchNorm would count the batch twice otherwise."""
    kept = [buffer.clone() for buffer in block.buffers()]
    try:
        yield
    finally:
        for buffer, before in zip(block.buffers(), kept, strict=True):
            buffer.copy_(before)
