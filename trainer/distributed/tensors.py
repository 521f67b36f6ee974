"""Helpers to handle modules and tensors in the same way, whether a mode shards them or not."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; a plain tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def numbers_of(module: nn.Module) -> dict[str, int | float | str]:
    """Return the numbers and texts of a module and its class, such as a count of its forward passes."""
    values: dict[str, Any] = {}
    for kind in reversed(type(module).__mro__):
        values |= vars(kind)
    values |= vars(module)
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float | str) and not name.startswith("__")
    }


class Kept:
    """A model's buffers, numbers and texts, such as a count of forward passes, as they are now."""

    def __init__(self, model: nn.Module) -> None:
        self._numbers = [(one, numbers_of(one)) for one in model.modules()]
        self._buffers = [
            (one, name, buffer, buffer.clone())
            for one in model.modules()
            for name, buffer in one.named_buffers(recurse=False)
        ]

    def restore(self) -> list[bool]:
        """Set everything as it was; return for each buffer if its values had changed."""
        for module, values in self._numbers:
            now = numbers_of(module)
            vars(module).update({k: value for k, value in values.items() if now.get(k) != value})
        changed = []
        for module, name, buffer, before in self._buffers:
            now_there = getattr(module, name)
            changed.append(not (isinstance(now_there, Tensor) and torch.equal(now_there, before)))
            setattr(module, name, buffer)  # a forward pass may have put another tensor in its place
            set_back([buffer], [before])
        return changed


@torch.no_grad()
def set_back(tensors: Iterable[Tensor], before: Sequence[Tensor]) -> list[bool]:
    """Set the tensors as they were before; return for each if it had changed."""
    changed = []
    for tensor, old in zip(tensors, before, strict=True):
        changed.append(not torch.equal(tensor, old))
        if changed[-1]:  # else a graph that uses the tensor could not go backward
            tensor.copy_(old)
    return changed


def digest(tensor: Tensor) -> tuple[int, float]:
    """Return two numbers that change with the tensor, without a copy of it.

    The hash is an exclusive or, so it is the same for other values in an even number of places.
    """
    if not tensor.numel():
        return 0, 0.0
    if tensor.itemsize == 1:  # hash_tensor has no float8
        tensor = tensor.view(torch.uint8)
    numbers = torch.sum(tensor, dtype=torch.float64).nan_to_num()
    return int(torch.hash_tensor(tensor).view(torch.int64)), float(numbers)


def move(module: nn.Module, device: torch.device) -> None:
    """Move a module, unless it is already there: the fake tensors of a dry run cannot be moved."""
    if any(tensor.device != device for tensor in (*module.parameters(), *module.buffers())):
        module.to(device)


def copied(
    module: nn.Module, make: Callable[[Tensor], Tensor], *, keep: Iterable[object] = ()
) -> nn.Module:
    """Return a copy of a module, with what `make` returns in place of its tensors.

    To compute shapes, use a copy: a forward pass may keep tensors, such as a mask, in the module. The
    copy refers to the objects in `keep`, which are not copied.
    """
    copies: dict[int, Any] = {id(one): one for one in keep}
    copies |= {id(buffer): make(buffer) for buffer in module.buffers()}
    for one in module.parameters():
        copies[id(one)] = nn.Parameter(make(one), one.requires_grad)
    for part in module.modules():
        # A tensor that is neither, such as a weight that a hook computes.
        for value in vars(part).values():
            if isinstance(value, Tensor):
                copies[id(value)] = make(value.detach())
    made: nn.Module = copy.deepcopy(module, copies)  # uses these instead of copying the tensors
    return made


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device; the copy does not wait for the device's queued work."""
    if tensor.device == device:
        return tensor
    if device.type != "cpu" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type != "cpu")


def by_kind(tensors: Iterable[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """Return the tensors in lists of one device and dtype, as foreach operations need them."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for one in tensors:
        kinds.setdefault((one.device, one.dtype), []).append(one)
    return kinds


def map_tensors(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Return `values` with `function` applied to each tensor in tuples, lists, dicts, at any depth."""
    if isinstance(values, Tensor):
        return function(values)
    if type(values) is dict:
        return {key: map_tensors(function, value) for key, value in values.items()}
    if isinstance(
        values, dict
    ):  # of a class of its own, such as the outputs of transformers' models
        mapped = copy.copy(values)
        for key, value in values.items():
            mapped[key] = map_tensors(function, value)
        return mapped
    if isinstance(values, tuple) and hasattr(values, "_fields"):  # a named tuple
        return type(values)(*(map_tensors(function, value) for value in values))
    if isinstance(values, (tuple, list)):
        return type(values)(map_tensors(function, value) for value in values)
    return values


def leaves(values: object) -> Iterator[object]:
    """Yield the values in tuples, lists and dicts, at any depth."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (tuple, list)):
        for value in values:
            yield from leaves(value)
    else:
        yield values
