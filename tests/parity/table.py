"""The table of tasks and modes that are compared; `tests/parity/test_table.py` has how to add a row.

A cell is a task in a row: a mode on a mesh, with a schedule. Each optimiser, accumulation and precision
in every cell is eight runs of it, which `make test-parity` carries out. In `make test` instead

- a cell on one or two ranks has two runs that differ in all three, so that it sees both optimisers,
  both accumulations and both precisions; which two goes round from row to row and task to task;
- one on more ranks, or of a dear task, has one of the eight, and the next cell the next;
- only digits is compiled: the tokens take a minute and a half.

A schedule other than gpipe cannot run one micro-batch, which is in REFUSED; under it all accumulate.

The recurrent models, the transformers and resnet18 are narrow here, their windows short; no other line
runs for that. In FULL they are as a user gets them, in a row each. The narrow resnet18 has GroupNorm:
BatchNorm goes by the samples of a micro-batch, which are others wherever ranks share one out. Over whole
batches SyncBatchNorm makes it equal, which FULL shows; test_pipeline has BatchNorm in stages.
"""

import os
from dataclasses import dataclass, field

# Every combination in every cell, as `make test-parity` sets it.
WHOLE = os.environ.get("MUSTER_TEST_PARITY") == "whole"

# Below most norms, so that clipping bites; the warm-up is short, so that twenty steps train.
COMMON = {
    "steps": "20",
    "eval_steps": "0",
    "checkpoint_steps": "0",
    "clip_norm": "0.1",
    "warmup_steps": "2",
}
# AdamW divides a gradient by its own size. Where it is nothing but rounding, as for the bias of an
# attention's keys, which the softmax ignores, each way to take the sum has steps of its own, the longer
# the higher the rate. So in float32 the weights drift apart, here, after twenty steps, by 2e-3 of
# keys.bias at lr=0.03 and 1e-5 at this one; digits at 0.03 by 7e-4 of the loss, at 0.01 by 1e-6.
OPTIMIZERS = {"sgd": {"optimizer": "sgd"}, "adamw": {"optimizer": "adamw", "lr": "0.0005"}}
# These are compared in some cells only, OPTIMIZER_CASES.
OPTIMIZERS |= {
    "adamw-fused": {"optimizer": "adamw-fused", "lr": "0.0005"},
    "muon": {"optimizer": "muon", "lr": "0.0005"},
}
# Largest relative difference of losses, norms, evaluations and weights.
TOLERANCE = {"fp64": 1e-8, "fp32": 1e-4}


@dataclass(frozen=True)
class Row:
    """A mode on a number of ranks, its mesh and settings."""

    mode: str
    ranks: int
    mesh: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def shares(self) -> int:
        """Ranks that see different samples."""
        if self.mode in ("pp", "tp"):
            sizes = dict(part.split("=") for part in self.mesh.split(",") if part)
            return int(sizes.get("dp_replicate", 1)) * int(sizes.get("dp_shard", 1))
        return self.ranks

    @property
    def accumulates(self) -> bool:
        """Whether it cannot run a step of one micro-batch, or is compared with itself there."""
        same = self.mode == "single" and not self.settings
        return same or self.settings.get("pipeline_schedule", "gpipe") != "gpipe"


def _pp(schedule: str, ranks: int = 2, mesh: str = "") -> Row:
    return Row("pp", ranks, mesh, {"pipeline_schedule": schedule})


ROWS = {
    "single": Row("single", 1),
    "dp": Row("dp", 1),
    "dp-balanced": Row("dp-balanced", 1),
    "mp": Row("mp", 1),
    "ddp": Row("ddp", 2),
    "ddp-zero1": Row("ddp-zero1", 2),
    "fsdp": Row("fsdp", 2),
    "hsdp": Row("hsdp", 4, "dp_replicate=2,dp_shard=2"),
    "pp gpipe": _pp("gpipe"),
    "pp 1f1b": _pp("1f1b"),
    "pp interleaved-1f1b": _pp("interleaved-1f1b"),
    "pp interleaved-zb": _pp("interleaved-zb"),
    "pp zbv": _pp("zbv"),
    "pp x ddp": _pp("gpipe", 4, "pp=2,dp_replicate=2"),
    "pp x fsdp": _pp("zbv", 4, "pp=2,dp_shard=2"),
}
WIDE = {  # the same on more ranks
    "ddp 8": Row("ddp", 8),
    "ddp-zero1 4": Row("ddp-zero1", 4),
    "fsdp 4": Row("fsdp", 4),
    "pp 4": _pp("1f1b", 4),
    "pp x hsdp": _pp("interleaved-zb", 8, "pp=2,dp_replicate=2,dp_shard=2"),
}
SPLIT = {
    "tp": Row("tp", 2),
    "tp, norms whole": Row("tp", 2, settings={"sequence_parallel": "false"}),
    "tp, loss split": Row("tp", 2, settings={"loss_parallel": "true"}),
    "fsdp x tp": Row("tp", 4, "dp_shard=2,tp=2"),
    "ddp x tp": Row("tp", 4, "dp_replicate=2,tp=2"),
    "pp x tp": Row("pp", 4, "pp=2,tp=2", {"pipeline_schedule": "gpipe", "loss_parallel": "true"}),
    "hsdp x tp": Row("tp", 8, "dp_replicate=2,dp_shard=2,tp=2", {"loss_parallel": "true"}),
    "pp x fsdp x tp": _pp("zbv", 8, "pp=2,dp_shard=2,tp=2"),
}
SYNCED = {"ddp, BatchNorm synced": Row("ddp", 2, settings={"sync_batchnorm": "true"})}
# One graph with one micro-batch in one process, else two.
COMPILED = {
    "single, compiled": Row("single", 1, settings={"compile": "step"}),
    "ddp, compiled": Row("ddp", 2, settings={"compile": "step"}),
}
ROWS |= WIDE | SPLIT | SYNCED | COMPILED
EVERY = tuple(name for name in ROWS if name not in WIDE | SPLIT | SYNCED | COMPILED)

_CHEAPEST = ("dp", "dp-balanced", "mp", "ddp", "ddp-zero1", "fsdp", "hsdp", "pp gpipe")
# A row of every mode, the one with the fewest ranks, with the cheapest task that it fits.
_QUICK_CELLS = {*(("digits", row) for row in _CHEAPEST), ("gpt", "tp")}


@dataclass(frozen=True)
class Task:
    """A task, the samples of its global batch, and the rows it is compared in."""

    name: str
    batch: int
    rows: tuple[str, ...]
    dear: bool = False


# What its rotary positions and gated layers have of their own is in how they are split and cut.
_TOKENS = ("pp gpipe", "tp", "tp, loss split", "fsdp x tp", *COMPILED)
_TIED = ("ddp-zero1", "fsdp", "hsdp")
TASKS = {
    "digits": Task("digits", 32, (*EVERY, *WIDE, *COMPILED)),
    "lstm": Task("tests.parity.tasks:Lstm", 16, EVERY),
    "gru": Task("tests.parity.tasks:Gru", 16, EVERY, dear=True),  # as the LSTM, but for its cell
    "gpt": Task("tests.parity.tasks:Gpt", 16, (*EVERY, *SPLIT), dear=True),
    "tokens": Task("tests.parity.tasks:Tokens", 16, _TOKENS, dear=True),
    "tokens, tied": Task("tests.parity.tasks:TiedTokens", 16, _TIED, dear=True),
    "resnet18": Task("tests.parity.tasks:ResNet", 16, EVERY, dear=True),
}
FULL = {
    "charlm-lstm": Task("charlm-lstm", 8, ("ddp",)),
    "charlm-gru": Task("charlm-gru", 8, ("fsdp",)),
    "charlm-gpt": Task("charlm-gpt", 8, ("tp",)),
    "resnet18, whole": Task("tests.parity.tasks:WholeResNet", 8, tuple(SYNCED)),
}
TASKS |= FULL


@dataclass(frozen=True)
class Case:
    task: str
    row: str
    optimizer: str
    accumulation: int
    precision: str = "fp64"

    def __str__(self) -> str:
        return f"{self.task}-{self.row}-{self.optimizer}-{self.accumulation}-{self.precision}"

    @property
    def settings(self) -> dict[str, str]:
        """What `run_ranks` is called with, the number of ranks aside."""
        task, row = TASKS[self.task], ROWS[self.row]
        return reference(self.task, self.optimizer, self.precision) | {
            "mode": row.mode,
            "mesh": row.mesh,
            "micro_batch": str(task.batch // row.shares // self.accumulation),
            **row.settings,
        }


def reference(task: str, optimizer: str, precision: str) -> dict[str, str]:
    """Return the settings of the run in one process that others are compared with."""
    return {
        **COMMON,
        "task": TASKS[task].name,
        "global_batch": str(TASKS[task].batch),
        "precision": precision,
        "mode": "single",
        **OPTIMIZERS[optimizer],
    }


def _cell(task: str, row: str, turn: int) -> list[Case]:
    """Return the cases of a cell; which they are, where they are not all, goes by `turn`."""
    if task in FULL:
        return [Case(task, row, "adamw", 1)]
    first = 4 if ROWS[row].accumulates else 1
    # two and two differ in all three
    eight = [
        Case(task, row, optimizer, accumulation, precision)
        for optimizers in (("sgd", "adamw"), ("adamw", "sgd"))
        for precisions in (("fp64", "fp32"), ("fp32", "fp64"))
        for optimizer, accumulation, precision in zip(
            optimizers, (first, 4), precisions, strict=True
        )
    ]
    if WHOLE:
        return [*dict.fromkeys(eight)]
    if row in COMPILED and TASKS[task].dear:
        return []
    if TASKS[task].dear or ROWS[row].ranks > 2:
        return [eight[turn % 8]]
    return eight[2 * (turn % 4) :][:2]


# Cases with the same process groups are next to each other: ranks start faster on what they have seen.
CASES = [
    case
    for number, (name, task) in enumerate(TASKS.items())
    for place, row in enumerate(task.rows)
    for case in _cell(name, row, number + place)
]
# Optimisers of which a mode keeps the state, or cuts the tensors, in its own way: a cell each has to do.
# In float64, because Muon rounds to bfloat16, which magnifies the rounding of float32.
_WHOLE_MATRICES = ("dp", "mp", "ddp", "ddp-zero1", "pp gpipe", "pp x ddp")
OPTIMIZER_CASES = [
    *(Case("digits", row, "adamw-fused", 4) for row in (*_CHEAPEST, "pp x fsdp")),
    *(Case("gpt", row, "adamw-fused", 1) for row in ("tp", "fsdp x tp")),
    *(Case("digits", row, "muon", 4) for row in _WHOLE_MATRICES),
    *(Case("gpt", row, "muon", 1) for row in ("ddp-zero1", "pp gpipe")),
    Case("tokens, tied", "ddp-zero1", "muon", 1),
]
# One pair a mode, a few seconds each: what `make test-fast` takes.
QUICK = {
    next(case for case in CASES if (case.task, case.row) == cell) for cell in sorted(_QUICK_CELLS)
}

_NO_PLAN = "cannot be split over the axis tp"
_SCHEDULES = [row for row in EVERY if ROWS[row].accumulates and ROWS[row].ranks == 2]
_MODELS = {
    "digits": "task digits: its model",  # a built-in one, whose file says so
    "lstm": "model Recurrent",
    "gru": "model Recurrent",
    "resnet18": "model ResNet",
}
# Combinations that are refused: ranks, settings, and the message. Whether tp works depends on the model
# alone: each model is refused in one row, and each row refuses one.
REFUSED: list[tuple[int, dict[str, str], str]] = [
    *(
        (ROWS[case.row].ranks, case.settings, message)
        for case, message in [
            *((Case(t, "tp", "sgd", 1), f"{model} {_NO_PLAN}") for t, model in _MODELS.items()),
            *((Case("digits", row, "sgd", 4), f"its model {_NO_PLAN}") for row in list(SPLIT)[3:]),
            *(
                (Case("digits", row, "sgd", 1), "makes 1 micro-batches of the")
                for row in _SCHEDULES
            ),
        ]
    ),
    (
        8,
        {"task": "charlm-gpt", "mode": "tp"},
        "the 4 heads of its model do not divide over tp=8; use tp=4",
    ),
    (
        4,
        {"task": "charlm-gpt", "mode": "pp", "pipeline_schedule": "interleaved-1f1b"},
        "the 4 pieces of its model cannot make 8 stages",
    ),
    (2, {"task": "tests.parity.tasks:Whole", "mode": "pp"}, "_Whole cannot be cut into stages"),
    (
        2,
        {"task": "tests.parity.tasks:TiedTokens", "mode": "tp"},
        "ties tokens.weight and head.weight; tied weights cannot be split over",
    ),
    (1, {"mode": "hogwild", "precision": "fp16"}, "it has no common step, so no common loss scale"),
    (
        2,
        {"mode": "fsdp", "optimizer": "muon"},
        "'muon': not with mode fsdp and dp_shard=2: it orth",
    ),
    (2, {"mode": "localsgd", "sync_batchnorm": "true"}, "its ranks have different weights until"),
    (
        2,
        {"mode": "fsdp", "compile": "step"},
        "TRAINER_COMPILE='step': not with mode fsdp: its step",
    ),
]
