"""Which modes each task is compared in, and how; `tests/parity/test_table.py` says how to add one."""

from dataclasses import dataclass, field

# Below most norms, so that clipping bites; the warm-up is short, so that twenty steps train.
COMMON = {
    "steps": "20",
    "eval_steps": "0",
    "checkpoint_steps": "0",
    "clip_norm": "0.1",
    "warmup_steps": "2",
}
OPTIMIZERS = {
    "sgd": {"optimizer": "sgd"},
    "adamw": {"optimizer": "adamw", "lr": "0.001"},
}
# Largest relative difference. In float32 only sgd is compared: AdamW divides a gradient that is nothing
# but rounding by its own size, so in float32 its steps differ however the sum was taken.
TOLERANCE = {"fp64": 1e-8, "fp32": 1e-4}


@dataclass(frozen=True)
class Task:
    """A task, the samples of its global batch, and the modes that are compared for it."""

    name: str
    batch: int
    rows: tuple[str, ...]


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
            sizes = [part.partition("=") for part in self.mesh.split(",")]
            data = [int(number) for axis, _, number in sizes if axis.startswith("dp_")]
            return data[0] * (data[1] if len(data) > 1 else 1) if data else 1
        return self.ranks


def _pipeline(schedule: str) -> Row:
    return Row("pp", 2, settings={"pipeline_schedule": schedule})


ROWS = {
    "single": Row("single", 1),
    "dp": Row("dp", 1),
    "dp-balanced": Row("dp-balanced", 1),
    "ddp": Row("ddp", 2),
    "ddp 4": Row("ddp", 4),
    "ddp 8": Row("ddp", 8),
    "ddp-zero1": Row("ddp-zero1", 2),
    "localsgd": Row("localsgd", 2, settings={"local_steps": "1"}),
    "fsdp": Row("fsdp", 2),
    "fsdp 4": Row("fsdp", 4),
    "hsdp": Row("hsdp", 4, "dp_replicate=2,dp_shard=2"),
    "mp": Row("mp", 1),
    "pp gpipe": _pipeline("gpipe"),
    "pp 1f1b": _pipeline("1f1b"),
    "pp interleaved-1f1b": _pipeline("interleaved-1f1b"),
    "pp interleaved-zb": _pipeline("interleaved-zb"),
    "pp zbv": _pipeline("zbv"),
    "pp x ddp": Row("pp", 4, "pp=2,dp_replicate=2"),
    "pp x fsdp": Row("pp", 4, "pp=2,dp_shard=2"),
    "tp": Row("tp", 2),
    "fsdp x tp": Row("tp", 4, "dp_shard=2,tp=2"),
    "ddp x tp": Row("tp", 4, "dp_replicate=2,tp=2"),
    "hsdp x tp": Row("tp", 8, "dp_replicate=2,dp_shard=2,tp=2"),
    "pp x fsdp x tp": Row("pp", 8, "pp=2,dp_shard=2,tp=2"),
}

SPLIT = tuple(name for name in ROWS if "tp" in name)
EVERY = tuple(name for name in ROWS if name not in SPLIT and name != "localsgd")
FEW = ("single", "ddp", "ddp-zero1", "fsdp", "hsdp", "mp", "pp 1f1b", "pp zbv", "pp x fsdp")

TASKS = {
    "digits": Task("digits", 32, EVERY),
    "lstm": Task("charlm-lstm", 8, FEW),
    "gru": Task("charlm-gru", 8, FEW),
    "gpt": Task("charlm-gpt", 8, (*FEW, *SPLIT)),
    "resnet18": Task("tests.parity.tasks:ResNet", 8, ("ddp", "fsdp", "hsdp", "pp 1f1b")),
}


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
        share = task.batch // row.shares
        micro = {"micro_batch": str(max(1, share // self.accumulation))}
        if row.mode == "pp" and self.accumulation == 1:
            micro = {}  # a pipeline of one micro-batch is none
        return reference(self.task, self.optimizer, self.precision) | {
            "mode": row.mode,
            "mesh": row.mesh,
            **row.settings,
            **micro,
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


def _cases() -> list[Case]:
    """Return all cases: digits in every combination, the dearer tasks in two of the four for a row.

    Which two alternates, so that over the rows of a task all four come up.
    """
    cases = []
    for name, task in TASKS.items():
        for number, row in enumerate(task.rows):
            pairs = [("sgd", 1 + 3 * (number % 2)), ("adamw", 4 - 3 * (number % 2))]
            if name == "digits" and ROWS[row].ranks <= 2:
                pairs = [(optimizer, n) for optimizer in OPTIMIZERS for n in (1, 4)]
            cases += [Case(name, row, optimizer, n) for optimizer, n in pairs]
            if name == "digits":
                cases.append(Case(name, row, "sgd", 4, "fp32"))
        if name != "digits":
            cases.append(Case(name, task.rows[1], "sgd", 4, "fp32"))
    return cases


CASES = _cases()
# One pair a mode, a few seconds each: what `make test-fast` takes.
QUICK = {
    Case("digits", row, "sgd", 4)
    for row in ("dp", "dp-balanced", "ddp", "ddp-zero1", "fsdp", "mp", "pp 1f1b")
}

# What cannot be: the task, the row, and what the refusal says.
REFUSED = [
    ("digits", "tp", "its model Net cannot be split over the axis tp: it offers no tensor_plan()"),
    ("lstm", "tp", "its model Recurrent cannot be split over the axis tp"),
    ("gru", "pp x fsdp x tp", "its model Recurrent cannot be split over the axis tp"),
    ("resnet18", "fsdp x tp", "its model ResNet cannot be split over the axis tp"),
]
