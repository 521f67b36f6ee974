"""Activation checkpointing: a block keeps only its input, and computes the rest again in backward.

Less memory for a second forward pass (Chen et al., 2016). The names of parameters stay.

    TRAINER_ACTIVATION_CHECKPOINTING=true python -m trainer
"""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from trainer.distributed.tensors import numbers_of
from trainer.distributed.torch_private import FakeTensor
from trainer.models.blocks import blocks


def recompute_blocks(model: nn.Module) -> None:
    """Make every block of the model recompute, in place."""
    classes: dict[type[nn.Module], type[nn.Module]] = {}  # torch.compile has a graph for each class
    for block in blocks(model):
        # A subclass, not a wrapper, which would change names, nor a method of the instance, with which a
        # replica of nn.DataParallel would run the module it was copied from.
        kind = type(block)
        if kind not in classes:
            own = {"__module__": kind.__module__}
            classes[kind] = type(kind.__name__, (_Recomputed, kind), own)
        block.__class__ = classes[kind]


class _Recomputed(nn.Module):
    # Names of what a forward pass changes; None before the first one.
    _changing: list[str] | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        compute = partial(super().forward, **named)
        if not (self.training and torch.is_grad_enabled()):
            return compute(*inputs)
        # torch.compile cannot trace context_fn; blocks with buffers are refused there.
        is_compiling = torch.compiler.is_compiling()
        before = {} if is_compiling else _state(self, self._changing)
        if not before:
            return checkpoint(compute, *inputs, use_reentrant=False)
        outputs = checkpoint(
            compute,
            *inputs,
            use_reentrant=False,
            # of the first forward pass and of the second
            context_fn=lambda: (contextlib.nullcontext(), _WithState(self, before)),
        )
        if self._changing is None:
            self._changing = [name for name, value in before.items() if _differs(self, name, value)]
            for name in before.keys() - {*self._changing}:
                del before[name]
        return outputs


def _state(block: nn.Module, names: list[str] | None) -> dict[str, object]:
    """Return by name copies of what a forward pass may change; None: of everything.

    Those are buffers, frozen weights, such as a teacher's, and numbers, such as a count.
    """
    if names is None:
        tensors = dict(block.named_buffers())
        tensors |= {n: one for n, one in block.named_parameters() if not one.requires_grad}
        found: dict[str, object] = {
            n: one for n, one in tensors.items() if not isinstance(one, DTensor)
        }
        for path, module in block.named_modules():
            found |= {f"{path}.{n}".lstrip("."): one for n, one in numbers_of(module).items()}
    else:
        found = {name: _get(block, name) for name in names}
    return {name: _copy(value) for name, value in found.items()}


class _WithState(contextlib.AbstractContextManager[None]):
    """Gives the block a former state: a second pass must compute what the first did.

    Otherwise a BatchNorm would count a batch twice, and a running mean would differ. It is entered
    twice where a pipeline's schedule takes the gradients of inputs and weights one after the other.
    """

    def __init__(self, block: nn.Module, state: Mapping[str, object]) -> None:
        self._block, self._state = block, state
        self._now: dict[str, object] = {}

    def __enter__(self) -> None:
        self._now = {name: _get(self._block, name) for name in self._state}
        for name, value in self._state.items():
            _set(self._block, name, _copy(value))

    def __exit__(self, *_: object) -> None:
        for name, value in self._now.items():
            _set(self._block, name, value)


def _copy(value: object) -> object:
    if isinstance(value, nn.Parameter):
        return nn.Parameter(value.detach().clone(), value.requires_grad)
    return value.detach().clone() if isinstance(value, Tensor) else value


def _differs(block: nn.Module, name: str, before: object) -> bool:
    now = _get(block, name)
    if not (isinstance(now, Tensor) and isinstance(before, Tensor)):
        return now != before
    if now.is_meta or isinstance(now, FakeTensor):  # without values
        return not isinstance(now, nn.Parameter)
    return not torch.equal(now, before)


def _get(block: nn.Module, name: str) -> object:
    path, _, last = name.rpartition(".")
    value: object = getattr(block.get_submodule(path), last)
    return value


def _set(block: nn.Module, name: str, value: object) -> None:
    path, _, last = name.rpartition(".")
    setattr(block.get_submodule(path), last, value)
