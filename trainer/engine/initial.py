"""A run's first weights: initial_weights() of a task and TRAINER_INIT; TRAINER_FREEZE keeps them.

TRAINER_INIT=resnet18.pth TRAINER_INIT_SKIP='fc.*' TRAINER_FREEZE='conv1.*,layer1.*' python -m trainer

No code in a file is run: a pickle that contains more than tensors is refused.
"""

import logging
import re
from collections.abc import Collection, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.task_contract import blamed_on, kind_of
from trainer.distributed.by_name import chosen, freeze, some
from trainer.models.blocks import tied

log = logging.getLogger("trainer")

_INSIDE = ("state_dict", "model_state_dict", "model")  # where other programs keep a state dict


def initialise(model: nn.Module, settings: Settings, *, is_main: bool, task: object = None) -> None:
    """Load and freeze the model's weights as task and settings say; log it if `is_main`.

    Raises Fault(64) if names or shapes do not fit the model, Fault(65) for a file that cannot be read.
    """
    notes = load_own(model, task, settings)
    if settings.init is not None:
        where = f"TRAINER_INIT={settings.init}"
        notes += _load(model, _read(Path(settings.init), where), where, settings)
    if settings.freeze:
        notes.append(freeze(model, settings.freeze))
    for note in notes if is_main else ():
        log.info("%s", note)


def load_own(model: nn.Module, task: object, settings: Settings) -> list[str]:
    """Load what the task's `initial_weights()` returns, if it has one; return lines for the log.

    Raises Fault(64) if that is neither a path nor a state dict, or does not fit the model, Fault(65) for
    a file that cannot be read.
    """
    method = getattr(task, "initial_weights", None)
    if method is None:
        return []
    with blamed_on(settings.task, "initial_weights()"):
        given = method()
    where = f"task {settings.task}: initial_weights()"
    if isinstance(given, str | Path):
        return _load(model, _read(Path(given), f"{where}, {given}"), where, settings)
    if not isinstance(given, Mapping):
        raise Fault(
            Exit.CONFIG,
            f"{where} returned a {kind_of(given)}; wanted: a state dict, or the path of a file with one",
        )
    return _load(model, _tensors(given, where), where, settings)


def _load(
    model: nn.Module, given: Mapping[str, Tensor], where: str, settings: Settings
) -> list[str]:
    """Copy the tensors into the model's tensors of the same names; return lines for the log."""
    wanted = model.state_dict()
    found, note = _renamed(given, wanted)
    skipped = chosen("TRAINER_INIT_SKIP", settings.init_skip, model, names=wanted)
    names = [name for name in wanted if name in found and name not in skipped]
    for several in tied(model).values():  # some files have a tied tensor only once
        skipped |= {*several} if {*several} & {*names} else set()
    # As load_state_dict, for BatchNorm of a file from before torch counted batches.
    skipped |= {name for name in wanted if name.endswith(".num_batches_tracked")}
    missing = [name for name in wanted if name not in found and name not in skipped]
    unlike = [
        f"{name} of shape {_shape(wanted[name])}, {_shape(found[name])} there"
        for name in names
        if wanted[name].shape != found[name].shape
    ]
    if missing or unlike:
        text = "; ".join(
            f"{what} {some(these)}"
            for what, these in (("it lacks", missing), ("the model has", unlike))
            if these
        )
        raise Fault(
            Exit.CONFIG,
            f"{where}: does not fit model {type(model).__name__}: {text}; TRAINER_INIT_SKIP=NAME,NAME* "
            "leaves such tensors at their random values",
        )
    with torch.no_grad():
        for name in names:
            wanted[name].copy_(found[name])
    more = sorted(found.keys() - wanted.keys())
    return [
        f"{where}: {len(names)} of the model's {len(wanted)} tensors{note}",
        *([f"{where}: not in the model: {some(more)}"] if more else []),
    ]


def _read(path: Path, where: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, a folder of them, or a state dict."""
    # Not at the top, because nothing else at the trainer's start needs it.
    from safetensors.torch import load_file  # noqa: PLC0415

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    values: Any = {}
    try:
        if files and all(file.suffix == ".safetensors" for file in files):
            for file in files:
                values |= load_file(file)
        elif files:
            values = torch.load(path, map_location="cpu", weights_only=True)
    # torch's reader may raise any exception for a damaged file.
    except Exception as error:
        reason = str(error).partition("\n")[0].partition(". This file")[0]
        if held := re.search(r"GLOBAL (\S+)", str(error)):  # beside the weights, such as arguments
            reason += (
                f": it holds {held[1]}, and only tensors are read from a pickle; save its state dict "
                "alone, with torch.save, to another file"
            )
        raise Fault(
            Exit.DATA,
            f"{where}: cannot be read as a state dict or safetensors: {type(error).__name__}: {reason}",
        ) from error
    return _tensors(values, where)


def _tensors(values: Any, where: str) -> dict[str, Tensor]:
    """Return the tensors by name, of a state dict or of a dict that contains one under a usual name."""
    for name in _INSIDE:
        if isinstance(values, dict) and isinstance(values.get(name), dict):
            values = values[name]
    tensors = {
        name: value
        for name, value in (values.items() if isinstance(values, Mapping) else ())
        if isinstance(name, str) and isinstance(value, Tensor)
    }
    if not tensors:
        wanted = (
            "a state dict, or a folder of *.safetensors; python -m trainer.export makes a file of a "
            "checkpoint of muster"
        )
        raise Fault(Exit.DATA, f"{where}: holds no tensors by name; wanted: {wanted}")
    return tensors


def _renamed(found: Mapping[str, Tensor], wanted: Collection[str]) -> tuple[dict[str, Tensor], str]:
    """Return the file's tensors by the model's names, and a note if only one of them has a prefix.

    DDP, torch.compile and other wrappers put a prefix before all names.
    """
    theirs, ours = _prefix(found), _prefix(wanted)
    best, note = dict(found), ""
    for less, more in ((theirs, ""), ("", ours), (theirs, ours)):
        named = {more + name.removeprefix(less): tensor for name, tensor in found.items()}
        if len(named.keys() & {*wanted}) > len(best.keys() & {*wanted}):
            best, note = named, f"; the prefix {less!r} of its names is read as {more!r}"
    return best, note


def _prefix(names: Collection[str]) -> str:
    """Return the longest "a.b." that all names begin with."""
    parts = [name.split(".")[:-1] for name in names]
    shared = takewhile(lambda level: len({*level}) == 1, zip(*parts, strict=False))
    return "".join(f"{level[0]}." for level in shared)


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "one number"
