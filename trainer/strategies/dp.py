"""nn.DataParallel: one process drives all visible GPUs, outputs and loss gather on the first.

Kept for comparison: ddp is faster, and dp-balanced loads the first GPU less.

    TRAINER_MODE=dp python -m trainer
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.data.sets import Batch
from trainer.distributed import optim
from trainer.strategies import Context, Strategy, accumulate, clip, inference

log = logging.getLogger("trainer")


def build(model: nn.Module, context: Context) -> Strategy:
    parameters = list(model.parameters())
    parallel = replicate(model, context)

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        return accumulate(parallel, micro_batches, context, scale=1 / weight)

    return Strategy(
        module=model,
        optimizer=optim.build(parameters, context.settings),
        step=step,
        clip=lambda norm: clip(parameters, norm),
        forward=inference(parallel, context),
    )


def replicate(module: nn.Module, context: Context) -> nn.Module:
    """Return the module with a replica on each visible GPU; as it is where there are less than two."""
    count = torch.cuda.device_count() if context.runtime.device.type == "cuda" else 0
    if count < 2:
        log.warning("mode %s: %s GPUs here, so one replica", context.settings.mode, count)
        return module
    return nn.DataParallel(module)
