"""An exponential moving average of the weights, which evaluations use (Polyak and Juditsky, 1992).

Each rank averages its own part, whole tensors or shards of them, so the average is the same in every
mode.

    TRAINER_EMA_DECAY=0.999 python -m trainer
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FSDPModule

from trainer.distributed.tensors import local_part


class Average:
    """The average of a module's parameters and of its buffers of real numbers.

    A number of a buffer that is not finite, as in a mask, is taken as it is.
    `stages`: those of a pipeline, which hold parts of the module.
    """

    def __init__(
        self, module: nn.Module, decay: float, *, stages: Sequence[nn.Module] = ()
    ) -> None:
        self._sharded = [
            part
            for root in (module, *stages)
            for part in root.modules()
            if isinstance(part, FSDPModule)
        ]
        self._decay = decay
        self._average: dict[str, Tensor] = {}
        self._pairs: list[tuple[Tensor, Tensor]] = []  # a parameter and its average
        # The same of a buffer, by its place: a forward pass may put another tensor there.
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []
        places = {
            _place(buffer): (part, name)
            for root in (module, *stages)
            for part in root.modules()
            for name, buffer in part.named_buffers(recurse=False)
        }
        seen: dict[object, Tensor] = {}  # tied weights have several names
        for name, tensor in get_model_state_dict(module).items():  # by the names of checkpoints
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                continue
            if (place := _place(tensor)) not in seen:
                seen[place] = tensor.clone()
                if place in places:
                    self._buffers.append((*places[place], seen[place]))
                else:
                    self._pairs.append((tensor, seen[place]))
            self._average[name] = seen[place]

    @torch.no_grad()
    def start(self) -> None:
        """Start with the weights as they are now."""
        for weight, average in self._now():
            average.copy_(weight)

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the weights after an optimiser step."""
        for weight, average in self._pairs:
            average.lerp_(weight, 1 - self._decay)
        for buffer, average in self._buffers_now():
            mixed = average.lerp(buffer, 1 - self._decay)
            # A mask's -inf has no average: -inf less -inf is nan.
            average.copy_(mixed.where(mixed.isfinite(), buffer))

    def _now(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each tensor of the module with its average."""
        yield from self._pairs
        yield from self._buffers_now()

    def _buffers_now(self) -> Iterator[tuple[Tensor, Tensor]]:
        for part, name, average in self._buffers:
            buffer = getattr(part, name)
            if isinstance(buffer, Tensor) and buffer.shape == average.shape:
                yield buffer, average

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Give the module the average as its weights within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, average in self._now():
            before = weight.clone()
            weight.copy_(average)
            average.copy_(before)
        for part in self._sharded:
            part.reshard()  # else it computes with the weights it gathered before

    def buffers(self) -> Iterator[Tensor]:
        """Yield the averages of buffers, which differ between ranks that see other samples."""
        for _, _, average in self._buffers:
            yield average

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._average)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a checkpoint's average."""
        for name, average in self._average.items():
            average.copy_(state[name])


def _place(tensor: Tensor) -> object:
    """Return what is equal for two tensors only if they are one."""
    local = local_part(tensor)
    # id: the fake storages of a dry run have no data_ptr; torch keeps one object per storage.
    return id(local.untyped_storage()), local.storage_offset(), local.shape
