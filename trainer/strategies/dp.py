"""nn.DataParallel: one process uses all visible GPUs; the first GPU gathers the outputs and the loss.

For comparison only: ddp is faster, and dp-balanced needs less of the first GPU.

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
    """Return the module with a replica on each visible GPU; unchanged if there are fewer than two."""
    count = torch.cuda.device_count() if context.runtime.device.type == "cuda" else 0
    if count < 2:
        log.warning(
            "mode %s: only one replica, because %s GPUs are visible", context.settings.mode, count
        )
        return module
    return nn.DataParallel(module)
