"""An exponential moving average of the weights, which evaluations use (Polyak and Juditsky, 1992).

It holds what this rank holds: whole tensors, or its shards of them, so it equals one process's average
in every mode.

    TRAINER_EMA_DECAY=0.999 python -m trainer
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict


class Average:
    """The average of a module's parameters and of its buffers of real numbers."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        state = get_model_state_dict(module)  # by the names that checkpoints use
        self._weights = {
            name: tensor
            for name, tensor in state.items()
            if isinstance(tensor, Tensor) and tensor.is_floating_point()
        }
        self._average = {name: tensor.clone() for name, tensor in self._weights.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of an optimiser step in."""
        for name, average in self._average.items():
            average.lerp_(self._weights[name], 1 - self._decay)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the module have the average for weights within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, average in self._average.items():
            weight = self._weights[name].clone()
            self._weights[name].copy_(average)
            average.copy_(weight)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._average)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take a checkpoint's average."""
        for name, average in self._average.items():
            average.copy_(state[name])
