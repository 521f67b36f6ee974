"""Optimiser and learning rate. The rate is a function of the step only, so it has no state to save.

A task may itself decide which optimiser updates which parameters, and how the rate changes:

    optimizer = build(model, settings, Own(optimizer=task.optimizer))
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.distributed.muon import Muon, for_muon

Groups = list[dict[str, Any]]  # in the form of torch's optimisers


@dataclass(frozen=True)
class Own:
    """The task's methods of these names; if one is None, the settings decide."""

    parameter_groups: Callable[[Mapping[str, nn.Parameter]], Groups] | None = None
    optimizer: Callable[[Groups], Optimizer] | None = None
    schedule: Callable[[int, int], float] | None = None


NOTHING = Own()


def peak_rate(settings: Settings) -> float:
    """Return the peak learning rate for the global batch.

    `lr` is meant for `lr_base_batch` samples per step. A larger batch allows a larger rate:
    in proportion (Goyal et al., 2017) or by the square root (Krizhevsky, 2014).
    """
    ratio = settings.global_batch / settings.lr_base_batch
    return settings.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[settings.lr_scale]


def lr_reason(settings: Settings) -> str:
    """Return in words how the peak learning rate follows from the settings."""
    if settings.lr_scale == "none":
        return "as set"
    ratio = f"{settings.global_batch}/{settings.lr_base_batch}"
    return f"{settings.lr} x {'sqrt ' * (settings.lr_scale == 'sqrt')}{ratio} samples per step"


def recipe(settings: Settings) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class and the arguments of the optimiser that the settings name."""
    common = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adamw":
        return AdamW, common
    if settings.optimizer == "adamw-fused":
        return AdamW, common | {"fused": True}
    momentum = common | {"momentum": settings.momentum}
    return (Muon if settings.optimizer == "muon" else SGD), momentum


def build(model: nn.Module, settings: Settings, own: Own) -> Optimizer:
    """Return the optimiser of the model's parameters. Raises Fault(64) if a task returns none."""
    kind, arguments = constructor(settings, own)
    groups = groups_of(model, settings, own)
    whole = all(not isinstance(p, DTensor) for p in model.parameters())
    dense = not any(getattr(one, "sparse", False) for one in model.modules())  # as of an Embedding
    if kind is SGD and whole and dense and not any(group.get("dampening") for group in groups):
        # A third of the time on a CPU; on a GPU its kernel can skip an update: skip_where.
        arguments = arguments | {"fused": True}
    optimizer = kind(groups, **arguments)
    zero_momentum(optimizer)
    return optimizer


def zero_momentum(optimizer: Optimizer) -> None:
    """Give SGD a momentum of zeros, with which a first step is the same as without one.

    The fused SGD would start with uninitialised memory, and a skipped first step would leave it so. It
    also fails if a parameter has its first gradient later than another (torch 2.15). With a sparse
    gradient the momentum would be sparse, and a checkpoint cannot hold that. With dampening the first
    step would differ, so a task's own optimiser with dampening is not changed.
    """
    if type(optimizer) is not SGD:
        return
    for group in optimizer.param_groups:
        if group["momentum"] and not group["dampening"]:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def update_as_on_a_gpu(optimizer: Optimizer) -> None:
    """Make AdamW update all parameters at once, as on a GPU, so that it needs as much memory."""
    if type(optimizer) is AdamW:
        for group in optimizer.param_groups:
            group["foreach"] = not group["fused"]


def skip_where(optimizer: Optimizer, skipped: Tensor) -> None:
    """Make the next step of a fused optimiser change nothing if `skipped`, shape (), is true.

    The host need not know the value. torch.amp.GradScaler does it in the same way.
    """
    setattr(optimizer, "found_inf", skipped.float())  # noqa: B010  # torch declares no such attribute


def constructor(settings: Settings, own: Own) -> tuple[Callable[..., Optimizer], dict[str, Any]]:
    """Return a function that makes an optimiser from parameter groups, and its other arguments."""
    if (make := own.optimizer) is None:
        return recipe(settings)

    def checked(groups: Groups) -> Optimizer:
        made: object = make(groups)
        if not isinstance(made, Optimizer):
            raise _wrong(settings, "optimizer()", f"a {type(made).__name__}; wanted: an Optimizer")
        if not all("lr" in group for group in made.param_groups):
            raise _wrong(settings, "optimizer()", f"a {type(made).__name__} without a rate, lr")
        given, taken = (
            {id(p) for g in part for p in g["params"]} for part in (groups, made.param_groups)
        )
        if given - taken:
            raise _wrong(
                settings,
                "optimizer()",
                f"a {type(made).__name__} without {len(given - taken)} of the {len(given)} parameters "
                "that it was given",
            )
        return made

    return checked, {}


def check_state(optimizer: Optimizer, options: Groups, settings: Settings) -> None:
    """Raise Fault(64) if a checkpoint cannot hold or restore what a step has put into the state.

    `options` are those of the groups as the optimiser was built.
    """
    given = {"params", *(name for group in options for name in group)}
    if added := [name for group in optimizer.param_groups for name in group if name not in given]:
        raise _wrong(
            settings,
            "optimizer()",
            f"a {type(optimizer).__name__} whose step adds {added[0]!r} to its groups; give it a "
            "default, because a checkpoint restores only options that a new optimiser has",
        )
    values = _state_of(optimizer)
    held = {id(value) for _, value in values}
    for inner in _inside(vars(optimizer), {id(optimizer)}):
        own = [n for n, v in _state_of(inner) if isinstance(v, Tensor) and id(v) not in held]
        if own:
            kind = type(inner).__name__
            raise _wrong(
                settings,
                "optimizer()",
                f"a {type(optimizer).__name__} that holds a {kind}, whose state {own[0]!r} is not in "
                f"its own, so a checkpoint does not have it; make it a subclass of {kind}, or one "
                "optimiser with several groups",
            )
    for name, value in values:
        if isinstance(value, Tensor):
            kind = "" if value.layout == torch.strided else f"{value.layout} tensor"
        else:
            kind = "" if isinstance(value, int | float) else type(value).__name__
        if kind:
            what = f"a {type(optimizer).__name__} whose state {name!r} is a {kind}"
            raise _wrong(
                settings,
                "optimizer()",
                f"{what}; a checkpoint can hold dense tensors, numbers and dicts of them",
            )


def _state_of(optimizer: Optimizer) -> list[tuple[str, Any]]:
    """Return the values of the state of all parameters, with their names; also those in dicts."""
    values = [item for state in optimizer.state.values() for item in state.items()]
    for _, value in values:
        if isinstance(value, dict):
            values += value.items()
    return [item for item in values if not isinstance(item[1], dict)]


def _inside(held: Any, seen: set[int]) -> Iterator[Optimizer]:
    """Yield the optimisers in a value: in dicts, lists and tuples, and in other optimisers."""
    if isinstance(held, Tensor) or id(held) in seen:
        return
    seen.add(id(held))
    if isinstance(held, Optimizer):
        yield held
        held = vars(held)
    if isinstance(held, dict):
        held = [*held.values()]
    for one in held if isinstance(held, list | tuple) else ():
        yield from _inside(one, seen)


def groups_of(model: nn.Module, settings: Settings, own: Own) -> Groups:
    """Return the parameters in the task's groups, or in one. Raises Fault(64) if no group has one."""
    named = dict(model.named_parameters())
    if own.parameter_groups is None:
        groups: Any = [{"params": [p for p in named.values() if p.requires_grad]}]
    else:
        groups = _own_groups(named, own.parameter_groups, settings)
    if settings.optimizer == "muon" and own.optimizer is None:
        return for_muon(groups, model)
    return list(groups)


def of_whole(model: nn.Module, settings: Settings, own: Own) -> Own:
    """Return `own` for a part of the model, with the groups that the task makes of the whole model.

    A rank of a pipeline has some of the parameters, and a task may choose by the names of others.
    """
    if own.parameter_groups is None:
        return own
    named = dict(model.named_parameters())
    names = {id(parameter): name for name, parameter in named.items()}
    groups = [
        (group, [names.get(id(parameter), "") for parameter in group.pop("params")])
        for group in _own_groups(named, own.parameter_groups, settings)
    ]

    def of_part(parameters: Mapping[str, nn.Parameter]) -> Groups:
        return [
            {**options, "params": [parameters[name] for name in of_group if name in parameters]}
            for options, of_group in groups
        ]

    return replace(own, parameter_groups=of_part)


def _own_groups(
    named: Mapping[str, nn.Parameter],
    parameter_groups: Callable[[Mapping[str, nn.Parameter]], Groups],
    settings: Settings,
) -> Groups:
    groups: Any = parameter_groups(named)
    if not isinstance(groups, list) or not all(
        isinstance(g, dict) and "params" in g for g in groups
    ):
        raise _wrong(
            settings, "parameter_groups()", 'no list of dicts with "params", as torch.optim wants'
        )
    for group in groups:
        group["params"] = list(group["params"])
    found = {id(parameter) for group in groups for parameter in group["params"]}
    left = [name for name, p in named.items() if p.requires_grad and id(p) not in found]
    if left:
        raise _wrong(
            settings, "parameter_groups()", f"no group with {left[0]}; set its requires_grad=False"
        )
    return list(groups)


def options_of(optimizer: Optimizer) -> Groups:
    """Return each group's options, without its parameters, for `set_options` and `set_learning_rate`.

    Options that are tensors are copied, because loading a checkpoint writes into them.
    """
    return [
        {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def set_options(optimizer: Optimizer, options: Sequence[Mapping[str, Any]]) -> None:
    """Set each group's options, because loading a checkpoint has replaced them."""
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)


def learning_rate(step: int, total: int, settings: Settings, own: Own = NOTHING) -> float:
    """Return the rate of optimiser step `step` (the first is 0) of `total`.

    Linear warm-up, then half a cosine down to zero (Loshchilov and Hutter, 2017), or constant; or the
    peak times what the task's `schedule` returns. Raises Fault(64) if that is negative or no number.
    """
    peak = peak_rate(settings)
    if own.schedule is not None:
        factor: Any = own.schedule(step, total)
        if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
            raise _wrong(
                settings, f"schedule({step}, {total})", f"{factor!r}; wanted: a number from 0 on"
            )
        return peak * factor
    if step < settings.warmup_steps:
        return peak * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return peak
    progress = (step - settings.warmup_steps) / max(1, total - settings.warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_learning_rate(
    optimizer: Optimizer, rate: float, options: Sequence[Mapping[str, Any]], settings: Settings
) -> None:
    """Set every group's rate; a group with another `lr` keeps its proportion to `settings.lr`.

    `options` are those of the groups as the optimiser was built.
    """
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group["lr"] = rate * (own["lr"] / settings.lr)


def _wrong(settings: Settings, method: str, came: str) -> Fault:
    return Fault(Exit.CONFIG, f"task {settings.task}: {method} returned {came}")
