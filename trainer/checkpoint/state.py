"""The contents of a checkpoint: model, optimiser, and other named parts of a run."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainer.distributed.tensors import local_part

State = dict[str, Any]

# Flat names, parameter by parameter, so that any mode can load a checkpoint of any other mode.
_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


def capture(module: nn.Module, optimizer: Optimizer, extra: Mapping[str, Stateful]) -> State:
    """Return the state as nested dicts. Its tensors are those of the run, which the next update changes.

    Buffers are copies, because a forward pass changes them (the statistics of a BatchNorm). `extra` has
    the loss scaler, averaged weights, an outer optimiser: objects with state_dict() and
    load_state_dict(). Their states have tensors, numbers, strings and lists, and change only in or after
    the optimiser's update.
    """
    module = _without_ddp(module)
    optimiser: State = {}
    if any(group["params"] for group in optimizer.param_groups):
        with _without_empty_groups(optimizer):
            model, optimiser = get_state_dict(module, optimizer, options=_OPTIONS)
    else:  # ddp-zero1 with more ranks than tensors; torch would raise an error
        model = get_model_state_dict(module, options=_OPTIONS)
    buffers = {local_part(b).untyped_storage().data_ptr() for b in module.buffers()}
    for name, value in model.items():
        if isinstance(value, Tensor) and local_part(value).untyped_storage().data_ptr() in buffers:
            model[name] = value.clone()
    others = {name: part.state_dict() for name, part in extra.items()}
    return {"model": model, "optimizer": optimiser, "extra": others}


def restore(
    state: State, module: nn.Module, optimizer: Optimizer, extra: Mapping[str, Stateful]
) -> None:
    """Load a state that `capture` made into model, optimiser and the parts of `extra` that it has."""
    module = _without_ddp(module)
    if state["optimizer"]:
        with _without_empty_groups(optimizer):
            set_state_dict(
                module,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
                options=_OPTIONS,
            )
    else:
        set_model_state_dict(module, state["model"], options=_OPTIONS)
    for name, part in state["extra"].items():
        extra[name].load_state_dict(part)


def _without_ddp(module: nn.Module) -> nn.Module:
    """Return the model: torch 2.15 cannot load into DDP if one module has two names in the model."""
    return module.module if isinstance(module, DistributedDataParallel) else module


@contextlib.contextmanager
def _without_empty_groups(optimizer: Optimizer) -> Iterator[None]:
    """Hide groups without parameters on this rank: torch 2.15 reads each group's first parameter."""
    groups = optimizer.param_groups
    optimizer.param_groups = [group for group in groups if group["params"]]
    try:
        yield
    finally:
        left = iter(optimizer.param_groups)  # loading has replaced them
        optimizer.param_groups = [next(left) if group["params"] else group for group in groups]
