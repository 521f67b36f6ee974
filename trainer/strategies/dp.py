"""nn.DataParallel: one process drives all visible GPUs, outputs and loss gather on the first.

Kept for comparison: ddp is faster, and dp-balanced loads the first GPU less.

    TRAINER_MODE=dp python -m trainer
"""

import logging
from dataclasses import replace

import torch
from torch import nn

from trainer.strategies import Context, Strategy, single

log = logging.getLogger("trainer")


def build(model: nn.Module, context: Context) -> Strategy:
    return replace(single.build(replicate(model, context), context), module=model)


def replicate(module: nn.Module, context: Context) -> nn.Module:
    """Return the module with a replica on each visible GPU; as it is where there are less than two."""
    count = torch.cuda.device_count() if context.runtime.device.type == "cuda" else 0
    if count < 2:
        log.warning("mode %s: %s GPUs here, so one replica", context.settings.mode, count)
        return module
    return nn.DataParallel(module)
