"""What the model of a task must be, so that every mode can move, update, cut and save it.

check_model(task.model(), "circles:Circles")
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.config.exits import Exit, Fault
from trainer.data.task_contract import blamed_on, kind_of
from trainer.distributed.tensors import leaves

_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}


def check_model(model: Any, name: str) -> None:
    """Raise Fault(64) unless it is a module whose tensors can be moved, updated and saved.

    `name` is the task's.
    """
    if not isinstance(model, nn.Module):
        raise Fault(
            Exit.CONFIG,
            f"task {name}: model() returned a {kind_of(model)}; wanted: an nn.Module",
        )
    checks = (_of_wrappers(model), _of_a_tensor(model), _of_memory(model), _of_names(model, name))
    for problem, wanted in checks:
        if problem:
            raise Fault(
                Exit.CONFIG,
                f"task {name}: model() returned a model whose {problem}; wanted: {wanted}",
            )


def _of_wrappers(model: nn.Module) -> tuple[str, str]:
    """One DistributedDataParallel in another averages the gradients in another way."""
    for key, module in model.named_modules():
        kind = type(module)
        if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
            where = f"module {key}" if key else "outermost module"
            wanted = "the module in it, because TRAINER_MODE wraps it"
            return f"{where} is a {kind.__name__}", wanted
    return "", ""


def _of_a_tensor(model: nn.Module) -> tuple[str, str]:
    """Return what is wrong with a tensor's kind and what is wanted; "" for nothing."""
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        wanted = "a dense tensor"
        if isinstance(tensor, DTensor):
            return f"{key} is a DTensor", "a plain tensor, because TRAINER_MODE shards it"
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            return f"{key} has no size yet (a lazy layer)", wanted
        if tensor.is_meta:
            return f"{key} is on the device meta and has no values", wanted
        if tensor.layout != torch.strided or tensor.is_quantized:
            return f"{key} is {'quantized' if tensor.is_quantized else tensor.layout}", wanted
        if isinstance(tensor, nn.Parameter) and tensor.is_complex():
            return f"{key} is {tensor.dtype}", "real; use torch.view_as_complex in forward()"
    return "", ""


def _of_memory(model: nn.Module) -> tuple[str, str]:
    """Two parameters of the same memory would be two weights on a GPU, or where they are sharded."""
    places: dict[int, str] = {}
    for key, parameter in model.named_parameters():
        if type(parameter) is nn.Parameter and parameter.numel():
            other = places.setdefault(parameter.data_ptr(), key)
            if other != key:
                return (
                    f"{key} and {other} are two parameters with the same memory",
                    "one parameter in both places, set without another nn.Parameter()",
                )
    return "", ""


def _of_names(model: nn.Module, name: str) -> tuple[str, str]:
    """What its state_dict() does not have could not be resumed, and other names could not be saved."""
    with blamed_on(name, "the model's state_dict()"):
        state = model.state_dict()
    extra = {key: value for key, value in state.items() if key.endswith("_extra_state")}
    for key, value in extra.items():
        for leaf in leaves(value):
            if not isinstance(leaf, Tensor | int | float | str | None):
                wanted = "tensors, numbers, texts, lists and dicts in it, as a checkpoint can hold"
                return f"get_extra_state() gives a {kind_of(leaf)} ({key})", wanted
    saved = state.keys() - extra.keys()
    parameters = {key for key, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {key for key, _ in model.named_buffers(remove_duplicate=False)}
    wanted = (
        "each parameter and buffer under its own name, because checkpoints need it; remove the hook"
    )
    if missing := sorted(parameters - saved):
        return f"state_dict() lacks {missing[0]}", wanted
    if unknown := sorted(saved - parameters - buffers):
        return f"state_dict() has {unknown[0]}, which is no parameter or buffer", wanted
    return "", ""
