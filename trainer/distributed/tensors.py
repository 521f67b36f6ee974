"""What torch lacks to handle a module or tensor alike, whether a mode shards it or not."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; a plain tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def move(module: nn.Module, device: torch.device) -> None:
    """Move a module, unless it is there: the fake tensors of a dry run cannot be moved."""
    if any(tensor.device != device for tensor in (*module.parameters(), *module.buffers())):
        module.to(device)


def leaves(values: object) -> Iterator[object]:
    """Yield what stands in tuples, lists and dicts, however deep."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (tuple, list)):
        for value in values:
            yield from leaves(value)
    else:
        yield values
