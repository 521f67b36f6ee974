"""nn.DataParallel that computes the loss in each replica and gathers one scalar per GPU, no outputs.

So the first GPU does not hold the outputs of all GPUs. The scalars are sums, not means, so an uneven
split of the batch still gives the right mean.

    TRAINER_MODE=dp-balanced python -m trainer
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from trainer.data.sets import Batch, Nested
from trainer.distributed.precision import autocast
from trainer.strategies import Context, Strategy, single, weighted_loss
from trainer.strategies.dp import replicate


class LossInside(nn.Module):
    """Model and loss in one module, to be replicated together."""

    def __init__(self, model: nn.Module, context: Context) -> None:
        super().__init__()
        self.model = model
        self._context = context

    def forward(self, inputs: Nested, targets: Nested, weights: Tensor) -> Tensor:
        """Return the sum of the losses of a replica's share, shape (1,), to be gathered."""
        with autocast(self._context.settings, self._context.runtime.device):
            outputs = self.model(inputs)
        return weighted_loss(outputs, Batch(inputs, targets, weights), self._context).view(1)


def build(model: nn.Module, context: Context) -> Strategy:
    parallel = replicate(LossInside(model, context), context)

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        losses = []
        for batch in micro_batches:
            loss = parallel(batch.inputs, batch.targets, batch.weights).sum()
            (loss / weight).backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    return replace(single.build(model, context), step=step)
