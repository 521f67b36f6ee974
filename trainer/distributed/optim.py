"""Optimiser and learning rate. The rate is a function of the step alone, so it has no state to save."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trainer.config.settings import Settings


def peak_rate(settings: Settings) -> float:
    """Return the peak learning rate for the global batch.

    `lr` is meant for `lr_base_batch` samples per step. A larger batch allows a larger rate:
    in proportion (Goyal et al., 2017) or by the square root (Krizhevsky, 2014).
    """
    ratio = settings.global_batch / settings.lr_base_batch
    return settings.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[settings.lr_scale]


def lr_reason(settings: Settings) -> str:
    """Return in words how the peak learning rate follows from the settings."""
    if settings.lr_scale == "none":
        return "as set"
    ratio = f"{settings.global_batch}/{settings.lr_base_batch}"
    return f"{settings.lr} x {'sqrt ' * (settings.lr_scale == 'sqrt')}{ratio} samples per step"


def recipe(settings: Settings) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class and the arguments of the optimiser that the settings name."""
    common = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.optimizer == "sgd":
        return torch.optim.SGD, common | {"momentum": settings.momentum}
    return torch.optim.AdamW, common


def build(parameters: Iterable[nn.Parameter], settings: Settings) -> Optimizer:
    """Return the optimiser that the settings name, over `parameters`."""
    kind, arguments = recipe(settings)
    return kind(parameters, **arguments)


def apply_settings(optimizer: Optimizer, settings: Settings) -> None:
    """Set the hyperparameters from the settings; a loaded checkpoint has brought its own run's."""
    for group in optimizer.param_groups:
        group.update(recipe(settings)[1])


def learning_rate(step: int, total: int, settings: Settings) -> float:
    """Return the rate of optimiser step `step` (the first is 0) of `total`.

    Linear warm-up, then half a cosine down to zero (Loshchilov and Hutter, 2017), or constant.
    """
    peak = peak_rate(settings)
    if step < settings.warmup_steps:
        return peak * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return peak
    progress = (step - settings.warmup_steps) / max(1, total - settings.warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
