"""Copy a state's tensors to host memory while training continues.

DCP's own stager copies storages, which holds Python's lock during the copy, and it deep-copies the
description of a sharded tensor. This module copies only a rank's own shards; DCP plans with the state.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.distributed.tensors import local_part

Path = tuple[Any, ...]
Copies = Mapping[Path, Tensor]


class Staging:
    """Host memory for one copy of a state. It is reused for the next copy, and pinned if there is a GPU.

    Each device with a part of the state has a stream for the copy; mode mp uses several devices.
    """

    def __init__(self) -> None:
        self._own = torch.Stream().device if torch.accelerator.is_available() else None
        self._streams: dict[torch.device, torch.Stream] = {}
        self._kept: dict[Path, Tensor] = {}

    def wait_for(self, state: Mapping[str, Any]) -> None:
        """Wait for the updates that the devices have queued; the streams of the copy do not wait."""
        for device in {local_part(tensor).device for _, tensor in _tensors(state, ())}:
            if device.type != "cpu":
                torch.accelerator.current_stream(device).synchronize()

    def copy(self, state: Mapping[str, Any]) -> Copies:
        """Return copies of the tensors in nested dicts and lists, by their paths.

        The copies do not change until the next call.
        """
        found: defaultdict[torch.device | None, dict[Path, Tensor]] = defaultdict(dict)
        for path, tensor in _tensors(state, ()):
            part = local_part(tensor).detach()
            # This thread has no current device, but pinned memory belongs to a device.
            found[self._own if part.device.type == "cpu" else part.device][path] = part
        with torch.no_grad():
            for device, parts in found.items():
                if device is not None and device not in self._streams:
                    self._streams[device] = torch.Stream(device)
                with contextlib.nullcontext() if device is None else self._streams[device]:
                    for path, tensor in parts.items():
                        self._fill(path, tensor)
        for stream in self._streams.values():
            stream.synchronize()
        return {path: self._kept[path] for parts in found.values() for path in parts}

    def _fill(self, path: Path, tensor: Tensor) -> None:
        kept = self._kept.get(path)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._own is not None)
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
