"""Copy a state's tensors to host memory, beside the training.

DCP's own stager copies storages, which holds Python's lock for as long as a copy takes, and deep-copies
what describes a sharded tensor. Here only a rank's own shards are copied; DCP plans with the state.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

Path = tuple[Any, ...]
Copies = Mapping[Path, Tensor]


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Staging:
    """Host memory for one copy of a state: kept, and pinned where there is an accelerator."""

    def __init__(self) -> None:
        self._accelerated = torch.accelerator.is_available()
        self._stream = torch.Stream() if self._accelerated else None
        self._kept: dict[Path, Tensor] = {}

    def copy(self, state: Mapping[str, Any]) -> Copies:
        """Return copies of the tensors in nested dicts and lists, by their paths.

        They stay as they are until the next call.
        """
        found = {path: local(tensor).detach() for path, tensor in _tensors(state, ())}
        with torch.no_grad():
            if self._stream is None:
                self._fill(found)
            else:
                with self._stream:
                    self._fill(found)
                self._stream.synchronize()
        return {path: self._kept[path] for path in found}

    def _fill(self, found: Mapping[Path, Tensor]) -> None:
        for path, tensor in found.items():
            kept = self._kept.get(path)
            if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._accelerated)
                self._kept[path] = kept
            kept.copy_(tensor, non_blocking=True)


def _tensors(state: Any, path: Path) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(state, Tensor):
        yield path, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from _tensors(value, (*path, key))
    elif isinstance(state, list | tuple):
        for number, value in enumerate(state):
            yield from _tensors(value, (*path, number))
