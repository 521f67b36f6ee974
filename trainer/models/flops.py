"""Count the floating-point operations of a model's forward and backward pass, without data or device.

count(model, batch.inputs, dtype=torch.float32)     # of the whole batch
"""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.data.sets import Nested
from trainer.distributed.tensors import copied, leaves, map_tensors
from trainer.distributed.torch_private import TorchDispatchMode

_LIMIT = 2.0  # seconds of the processor: a run's start is not to wait for it


def count(model: nn.Module, inputs: Nested, *, dtype: torch.dtype, limit: float = _LIMIT) -> float:
    """Return how many there are in matrix products, convolutions and attention, of meta tensors.

    The loss is left out. The model stays as it is. Raises what the model raises where it asks for
    values, and TimeoutError after `limit` seconds.
    """

    def shape(tensor: Tensor) -> Tensor:
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty_like(tensor, device="meta", dtype=kind)

    model = copied(model, shape)
    with (
        torch.random.fork_rng(devices=[]),
        _Deadline(time.thread_time() + limit),
        FlopCounterMode(display=False) as counter,
    ):
        outputs = model(map_tensors(shape, inputs))
        found = [one for one in leaves(outputs) if isinstance(one, Tensor) and one.requires_grad]
        if not found:
            raise TypeError("the model returned no tensor that has a gradient")
        torch.autograd.backward([one.sum() for one in found])
    return float(counter.get_total_flops())


class _Deadline(TorchDispatchMode):
    """Raises TimeoutError at the first operation after a time of this thread's processor."""

    def __init__(self, end: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._end = end

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if time.thread_time() > self._end:
            raise TimeoutError("it takes too long")
        return func(*args, **(kwargs or {}))
