"""Checkpoints: torch.distributed.checkpoint folders that exist only once they are complete.

A checkpoint is written beside (`.step-00000100.partial`), its files are listed with their sizes in
`muster.json`, flushed to disk, and the folder is renamed to `step-00000100`. What has that name and
the sizes it lists is complete; anything else is never resumed from. The format is the same for every
mode and world size.
"""

import json
import os
import re
import shutil
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from trainer.exits import Exit, Fault
from trainer.runtime import Runtime, from_main, say

_NAME = re.compile(r"step-(\d{8,})")
_LISTING = "muster.json"

_ALONE = "torch.distributed is disabled"  # a warning that a world of one need not read

# Flat names, parameter by parameter, so that any mode can load what any other saved.
_OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(frozen=True)
class Progress:
    """How far a run is, and what must stay the same for its data order to go on unbroken."""

    step: int
    samples: int
    task: str
    seed: int
    global_batch: int


def save(
    folder: Path,
    progress: Progress,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    runtime: Runtime,
    keep: int,
) -> Path:
    """Write a checkpoint of `progress` to `folder` and return its path; all ranks call it together.

    Afterwards all but the newest `keep` are removed. Raises Fault(65) when the disk refuses.
    """
    path = folder / f"step-{progress.step:08d}"
    partial = folder / f".{path.name}.partial"
    model_state, optimizer_state = get_state_dict(module, optimizer, options=_OPTIONS)
    try:
        if runtime.is_main:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        _wait_for_all(runtime)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_ALONE)
            dcp.save(
                {"model": model_state, "optimizer": optimizer_state},
                checkpoint_id=partial,
                process_group=runtime.control,
                no_dist=runtime.control is None,
            )
        if runtime.is_main:
            _commit(partial, path, progress)
            for old in _named(folder)[:-keep]:
                shutil.rmtree(old)
    except OSError as error:
        raise Fault(
            Exit.DATA, f"checkpoint {path}: cannot be written: {error.strerror or error}"
        ) from error
    _wait_for_all(runtime)
    return path


def _commit(partial: Path, path: Path, progress: Progress) -> None:
    sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
    listing = {"format": 1, "progress": asdict(progress), "files": sizes}
    (partial / _LISTING).write_text(json.dumps(listing, indent=1), encoding="utf-8")
    for file in (*partial.iterdir(), partial):
        _flush(file)
    shutil.rmtree(path, ignore_errors=True)  # a damaged one of the same step
    partial.rename(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _wait_for_all(runtime: Runtime) -> None:
    if runtime.control is not None:
        dist.barrier(group=runtime.control)


def find(resume: str, folder: Path, *, runtime: Runtime) -> Path | None:
    """Return the checkpoint to resume from, the same on every rank, or None to start anew.

    `resume` is the setting: auto, never, or a path. Raises Fault(65) when a named checkpoint, or
    every one there is, is damaged.
    """
    answer: Path | Fault | None = None
    if runtime.is_main:
        try:
            answer = _choose(resume, folder)
        except Fault as fault:
            answer = fault
    answer = from_main(answer, runtime)
    if isinstance(answer, Fault):
        raise answer
    return answer


def newest(folder: Path, *, before: int, runtime: Runtime) -> Path | None:
    """Return the newest complete checkpoint of less than `before` steps, the same on every rank."""
    found = [path for path in _named(folder) if _step(path) < before and not _damage(path)]
    return from_main(found[-1] if found else None, runtime)


def _choose(resume: str, folder: Path) -> Path | None:
    if resume == "never":
        _set_aside(folder)
        return None
    if resume != "auto":
        path = Path(resume)
        if reason := _damage(path):
            raise Fault(Exit.DATA, f"TRAINER_RESUME={resume}: not a complete checkpoint: {reason}")
        return path
    candidates = _named(folder)
    for path in reversed(candidates):
        reason = _damage(path)
        if reason is None:
            return path
        say(f"checkpoint {path} is damaged and left alone: {reason}")
    if candidates:
        raise Fault(
            Exit.DATA,
            f"{folder}: all {len(candidates)} checkpoints are damaged; "
            "TRAINER_RESUME=never starts over",
        )
    return None


def _set_aside(folder: Path) -> None:
    """Move the checkpoints of an earlier run out of the way, so that none is resumed from later."""
    if not _named(folder):
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(aside)
    say(f"starting over; the checkpoints of the run before are in {aside}")


def _named(folder: Path) -> list[Path]:
    """Return what bears the name of a checkpoint, oldest first."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _damage(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None when it is complete."""
    try:
        listing = json.loads((path / _LISTING).read_text(encoding="utf-8"))
        Progress(**listing["progress"])
        sizes = listing["files"].items()
        for name, expected in sizes:
            actual = (path / name).stat().st_size
            if actual != expected:
                return f"{name} has {actual} bytes instead of {expected}"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{_LISTING} is unreadable: {error}"
    return None


def load(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, *, runtime: Runtime
) -> Progress:
    """Load `path` into model and optimiser and return how far it was. Raises Fault(65)."""
    model_state, optimizer_state = get_state_dict(module, optimizer, options=_OPTIONS)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_ALONE)
            dcp.load(
                state,
                checkpoint_id=path,
                process_group=runtime.control,
                no_dist=runtime.control is None,
            )
        set_state_dict(
            module,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_OPTIONS,
        )
    except (CheckpointException, RuntimeError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise Fault(Exit.DATA, f"checkpoint {path}: does not fit this run: {reason}") from error
    listing = json.loads((path / _LISTING).read_text(encoding="utf-8"))
    return Progress(**listing["progress"])
