"""The setting `precision`: the dtype of parameters and inputs, autocast, TF32 and loss scaling.

With `fp32` and `fp64`, parameters, inputs and computation have that dtype. With `tf32`, `bf16` and
`fp16` parameters stay float32: tf32 rounds the factors of matrix products, the other two compute
under autocast.

    TRAINER_PRECISION=bf16 python -m trainer
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.distributed.tensors import map_tensors
from trainer.distributed.torch_private import multiply_all

_FIRST_SCALE = 2.0**16
_STEPS_TO_DOUBLE = 2000

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def dtype_of(settings: Settings) -> torch.dtype:
    """Return the dtype of parameters and inputs."""
    return torch.float64 if settings.precision == "fp64" else torch.float32


def cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Give the model's parameters and buffers this dtype, float32 or float64, in place.

    Complex buffers, as of rotary embeddings, stay complex; `model.to(dtype)` drops their imaginary part.
    """
    return model.double() if dtype == torch.float64 else model.float()


def half(settings: Settings) -> torch.dtype | None:
    """Return the dtype of autocast; None for precisions without autocast."""
    return _HALF.get(settings.precision)


def autocast(settings: Settings, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return the context that forward passes run in."""
    dtype = half(settings)
    return torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext()


def in_float32(outputs: Any, settings: Settings) -> Any:
    """Return the outputs of a model with tensors of autocast's dtype as float32, for losses and scores.

    A loss of bf16 outputs would have three digits. torch's own losses compute in float32 under
    autocast; those that a task writes itself would not.
    """
    dtype = half(settings)
    if dtype is None:
        return outputs
    return map_tensors(lambda one: one.float() if one.dtype == dtype else one, outputs)


def set_tf32(settings: Settings, device: torch.device) -> None:
    """Switch TF32 on for `tf32`, else off, in matrix products and convolutions.

    Raises Fault(64) for `tf32` on a device without it.
    """
    asked, is_cuda = settings.precision == "tf32", device.type == "cuda"
    if asked and not (is_cuda and torch.cuda.get_device_capability(device) >= (8, 0)):
        raise Fault(Exit.CONFIG, f"TRAINER_PRECISION='tf32': {device} has no TF32; use fp32")
    if not is_cuda:
        return
    torch.set_float32_matmul_precision("high" if asked else "highest")
    # cudnn has its own flag, on by default. Setting `conv.fp32_precision` instead makes every later
    # read of this flag an error, as in torch.backends.cudnn.flags() (torch 2.15).
    torch.backends.cudnn.allow_tf32 = asked


class LossScale:
    """The factor of the loss that prevents underflow of fp16 gradients; 1 for other precisions.

    It is halved when a gradient overflows and doubled after 2000 steps without overflow (Micikevicius et
    al., 2018). torch's GradScaler decides by the gradients that each rank holds. Here the norm that
    clipping returns decides. It is the same on every rank, also with shards and pipeline stages.
    """

    def __init__(self, settings: Settings) -> None:
        self.value = _FIRST_SCALE if settings.precision == "fp16" else 1.0
        self._adapts = settings.precision == "fp16"
        self._steps_since = 0

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the scale."""
        if self._adapts:
            gradients = [p.grad for p in parameters if p.grad is not None]
            multiply_all(gradients, 1 / self.value)  # as torch.optim does

    def count_success(self) -> None:
        """Count a step with a finite gradient."""
        self._steps_since += 1
        if self._adapts and self._steps_since >= _STEPS_TO_DOUBLE:
            self.value, self._steps_since = self.value * 2, 0

    def back_off(self) -> bool:
        """Halve the scale after a gradient that was not finite; return False if it is 1 already."""
        self._steps_since = 0
        if not self._adapts or self.value <= 1:
            return False
        self.value /= 2
        return True

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value, "steps_since": self._steps_since}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value, self._steps_since = float(state["value"]), int(state["steps_since"])
