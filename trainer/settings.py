"""The trainer's settings: one typed model, read from TRAINER_* here and checked by the renderer.

The job file's `trainer:` block holds the same keys in lower camel case. Both ways end in `parse`, so
a value that the renderer accepts is a value that the trainer accepts. Imports neither torch nor
kubernetes.

    TRAINER_MODE=ddp TRAINER_GLOBAL_BATCH=128 torchrun --nproc-per-node 2 -m trainer
"""

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from trainer.exits import Exit, Fault
from trainer.modes import MODES

PREFIX = "TRAINER_"

# How a setting is called where it was written: "TRAINER_LR" or "trainer.lr".
Label = Callable[[str], str]

_Text = Annotated[str, StringConstraints(min_length=1)]


def built_in_tasks() -> list[str]:
    """Return the names of the built-in tasks: the files of `trainer/tasks/`."""
    folder = Path(__file__).parent / "tasks"
    return sorted(p.stem.replace("_", "-") for p in folder.glob("*.py") if p.stem[0] != "_")


class Settings(BaseModel):
    """What a run does. Every field's description is its line in the README and in --help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True
    )

    task: _Text = Field(
        "digits", description="what to train: a built-in task or package.module:Class"
    )
    mode: _Text = Field("auto", description="how to train it in parallel: auto, or a mode's name")
    mesh: str = Field(
        "", description="sizes of the mesh, e.g. dp_replicate=4; the product is the world size"
    )
    epochs: int = Field(30, ge=0, description="passes over the training data")
    steps: int | None = Field(None, ge=0, description="optimiser steps; overrides epochs")
    global_batch: int = Field(32, ge=1, description="samples per optimiser step, over all ranks")
    micro_batch: int | None = Field(
        None,
        ge=1,
        description="samples per forward pass and rank; the rest is accumulated (default: all at once)",
    )
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="sgd or adamw")
    lr: float = Field(0.03, gt=0, allow_inf_nan=False, description="peak learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(
        0.005, ge=0, allow_inf_nan=False, description="weight decay of either optimiser"
    )
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="learning rate after the warm-up: cosine (to zero) or constant"
    )
    warmup_steps: int = Field(20, ge=0, description="steps of linear warm-up")
    clip_norm: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="largest global gradient norm; 0 does not clip"
    )
    precision: Literal["fp32", "bf16", "fp64"] = Field(
        "fp32", description="fp32; bf16 autocast; or fp64, in which modes can be compared exactly"
    )
    reshard: bool = Field(
        True, description="fsdp, hsdp: free the gathered parameters between forward and backward"
    )
    cpu_offload: bool = Field(
        False, description="fsdp, hsdp: keep the shards in host memory between their uses"
    )
    seed: int = Field(
        0, ge=0, lt=2**32, description="decides initial weights, data order and what layers draw"
    )
    data: Path | None = Field(
        None, description="folder that holds the task's data, if it needs one"
    )
    workers: int = Field(
        0, ge=0, description="DataLoader processes per rank for data that is not held in memory"
    )
    out: Path | None = Field(
        None, description="run folder: metrics.jsonl, checkpoints/ (default: runs/TASK)"
    )
    resume: _Text = Field(
        "auto",
        description="auto: go on from the newest complete checkpoint; never: start over; "
        "or a checkpoint's path",
    )
    checkpoint_steps: int = Field(
        100, ge=0, description="steps between checkpoints; 0: only at the end and when stopped"
    )
    checkpoint_keep: int = Field(3, ge=1, description="newest checkpoints that are kept")
    eval_steps: int | None = Field(
        None, ge=0, description="steps between evaluations; 0: only at the end (default: an epoch)"
    )
    log: Literal["auto", "rich", "json"] = Field(
        "auto", description="rich: progress bar; json: a line an event; auto: rich on a terminal"
    )
    log_steps: int = Field(10, ge=1, description="steps between two step events")
    rendezvous_timeout: int = Field(
        600, ge=1, description="seconds to wait for the master and for all nodes"
    )
    collective_timeout: int = Field(
        300, ge=1, description="seconds a collective may take before the rank gives up (exit 69)"
    )

    @property
    def run_folder(self) -> Path:
        """`out`, or where a run's files go when nothing is set."""
        return self.out or Path("runs") / self.task.replace(":", ".")


def variable(field: str) -> str:
    """Return the environment variable of a field: global_batch -> TRAINER_GLOBAL_BATCH."""
    return PREFIX + field.upper()


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the TRAINER_* variables; an empty value counts as unset. Raises Fault(64)."""
    values = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value != ""
    }
    return parse(values, label=variable)


def parse(values: Mapping[str, str], *, label: Label) -> Settings:
    """Check `values` (field name to text, as an environment would hold it).

    Raises Fault(64) with one line that names the first wrong setting as its writer called it, the
    value seen and what would work.
    """
    for name in values:
        if name not in Settings.model_fields:
            raise Fault(Exit.CONFIG, f"{label(name)}: no such setting{_close_to(name, label)}")
    try:
        settings = Settings.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        message = first["msg"].replace("Input should be", "must be")
        raise Fault(Exit.CONFIG, f"{label(name)}={values[name]!r}: {message}") from None
    _check_names(settings, label)
    return settings


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the TRAINER_* variables that make `from_environment` read the same settings again.

    Only what was set is listed, in the order of the model.
    """
    return {
        variable(name): str(getattr(settings, name))
        for name in Settings.model_fields
        if name in settings.model_fields_set and getattr(settings, name) is not None
    }


def _check_names(settings: Settings, label: Label) -> None:
    if settings.mode not in ("auto", *MODES):
        raise Fault(
            Exit.CONFIG,
            f"{label('mode')}={settings.mode!r}: no such mode; choose auto, {', '.join(MODES)}",
        )
    module, colon, attribute = settings.task.partition(":")
    own = all(part.isidentifier() for part in (*module.split("."), attribute))
    if settings.task not in built_in_tasks() and not (colon and own):
        raise Fault(
            Exit.CONFIG,
            f"{label('task')}={settings.task!r}: no such task; choose "
            f"{', '.join(built_in_tasks())} or package.module:Class",
        )


def _close_to(name: str, label: Label) -> str:
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    return f"; did you mean {label(near[0])}?" if near else "; --help lists them all"
