"""Options that do not go with a mode or with one another: 64, by name, with what would work."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.faults.tasks import planted
from tests.ranks import run_ranks
from trainer.config.environment import parse, variable
from trainer.config.exits import Exit, Fault
from trainer.tools import dry_run

pytestmark = pytest.mark.slow

HOOK = "its parameter 0.weight has a hook on its gradient, which would be lost in mode "
CHANGES = "the forward pass changes the parameter 0."

REFUSED = [
    (2, {"sync_batchnorm": "1"}, "TRAINER_SYNC_BATCHNORM=true: torch's SyncBatchNorm runs on GPUs"),
    (
        2,
        {"mode": "tp", "task": "charlm-gpt", "compile": "1", "activation_checkpointing": "1"},
        (
            "TRAINER_COMPILE=true: does not work with TRAINER_ACTIVATION_CHECKPOINTING=true "
            "on a mesh with tp"
        ),
    ),
    (
        1,
        {
            "mode": "single",
            "task": "tests.parity.odd_models:NormedBlocks",
            "compile": "1",
            "activation_checkpointing": "1",
        },
        "TRAINER_ACTIVATION_CHECKPOINTING=true for blocks with buffers, such as BatchNorm's",
    ),
    *(
        (ranks, {"task": f"tests.parity.{task}", "steps": "2", **settings}, message)
        for ranks, task, settings, message in (
            (2, "odd_models:Short", {"mode": "ddp"}, "count of its model has the type torch.int16"),
            (2, "odd_models:Hooked", {"mode": "fsdp"}, HOOK + "fsdp; use mode ddp"),
            (1, "own_tasks:ReplacesABuffer", {"mode": "hogwild"}, "another tensor in a buffer's"),
            (1, "odd_models:HookedAfter", {"mode": "hogwild"}, HOOK + "hogwild; use mode ddp"),
            (
                4,
                "odd_models:Hooked",
                {"mode": "pp", "mesh": "pp=2,dp_shard=2"},
                HOOK + "pp; ",
            ),
            (
                2,
                "odd_models:Clamped",
                {"mode": "fsdp"},
                CHANGES + "weight",
            ),
            *(
                (
                    2,
                    "odd_models:MaxNorm",
                    {"mode": mode},
                    "outermost module has max_norm=0.5, by which",
                )
                for mode in ("ddp", "fsdp")
            ),
            (
                4,
                "odd_models:MaxNormFirst",
                {"mode": "pp", "mesh": "pp=2,dp_replicate=2"},
                "task tests.parity.odd_models:MaxNormFirst: its model's 0 has max_norm=0.5, by which",
            ),
            (
                2,
                "own_tasks:Followed",
                {"mode": "fsdp"},
                CHANGES + "average",
            ),
            (
                2,
                "nested_tasks:Padded",
                {"mode": "pp"},
                "the model gets inputs of shape (4, 3, 64); stages pass at most 4 samples of shape (1, ",
            ),
            (
                1,
                "odd_models:UsesALayerTwice",
                {"mode": "mp"},
                "2 of its pieces have 0.weight; each",
            ),
            (
                1,
                "odd_models:LooksAtValues",
                {"mode": "mp"},
                "0 fails on the meta device, with shapes but no values: R",
            ),
            (
                1,
                "odd_models:ReturnsTwo",
                {"mode": "mp"},
                "3 returns a tuple, not one tensor; ",
            ),
        )
    ),
    (1, {"precision": "tf32"}, "TRAINER_PRECISION='tf32': cpu has no TF32; use fp32"),
]


@pytest.mark.parametrize(("ranks", "settings", "message"), REFUSED, ids=lambda v: str(v)[:30])
def test_what_cannot_be_is_refused_by_name(
    ranks: int, settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    compiler = planted(CXX="true")  # what this machine lacks is not what is asked
    events = run_ranks(ranks, tmp_path, compiler, code=64, **settings)
    assert message in events[-1]["message"]


@pytest.mark.parametrize("mode", ["ddp", "auto"])
@pytest.mark.parametrize(
    ("task", "message"),
    [("RaisesInModel", "model() raised KeyError: "), ("RaisesInLoss", "the first step raised Key")],
)
def test_a_dry_run_refuses_a_task_that_raises_as_a_real_run_does(
    task: str, message: str, mode: str, tmp_path: Path
) -> None:
    written = {"task": f"tests.parity.odd_models:{task}", "mode": mode, "device_memory": "1"}
    settings = parse(written | {"out": str(tmp_path)}, label=variable)
    with pytest.raises(Fault, match=re.escape(f"task {settings.task}: {message}")) as caught:
        dry_run.run(settings, 2)
    assert caught.value.code == Exit.CONFIG


def test_a_change_that_a_sharded_stage_would_lose_ends_the_job(start: Any) -> None:
    """The ranks of the other stage lose a peer."""
    settings = {"TRAINER_MODE": "pp", "TRAINER_MESH": "pp=2,dp_shard=2", "TRAINER_STEPS": "2"}
    settings |= {"TRAINER_TASK": "tests.parity.odd_models:ClampedFirst"}
    ended = start("-m", "trainer.launch", PET_NPROC_PER_NODE="4", **settings).end()
    assert ended.code == 64
    assert CHANGES + "weight, which mode pp gathers" in ended.stderr


OTHER = "its model, split as tensor_plan() says, gives other outputs than forward() for the same"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            "Misnamed",
            "tensor_plan() has styles for *.out, and its model has no such module; it has bl",
        ),
        ("OnShares", OTHER),
        (
            "NoPlan",
            "tensor_plan() returned a dict; wanted: a TensorPlan of trainer.models.tensor_plan",
        ),
        (
            "Raises",
            "tensor_plan() raised KeyError: 'ups' (/",
        ),
        (
            "SplitsANormedLayer",
            "ColwiseParallel for the module head raised KeyError: 'parameter name can",
        ),
    ],
)
def test_a_wrong_tensor_plan_is_refused_by_name(task: str, message: str, tmp_path: Path) -> None:
    split = {"task": f"tests.parity.split_models:{task}", "mode": "tp"}
    events = run_ranks(2, tmp_path, code=64, **split)
    assert f"task {split['task']}: {message}" in events[-1]["message"]


@pytest.mark.parametrize(
    ("task", "sequence_parallel", "message"),
    [
        (
            "ChainedMisnamed",
            "false",
            "tensor_plan() has styles for *.over, and its model has no such ",
        ),
        ("OnShares", "false", OTHER),
        (
            "Chained",
            "true",
            "a stage's output has the shape (8, 64), and the next stage expects (8, 32), each rank's sh",
        ),
    ],
)
def test_stages_that_a_tensor_plan_does_not_fit_are_refused_by_name(
    task: str, sequence_parallel: str, message: str, start: Any
) -> None:
    settings = {"TASK": f"tests.parity.split_models:{task}", "MODE": "pp", "MESH": "pp=2,tp=2"}
    settings |= {"SEQUENCE_PARALLEL": sequence_parallel, "MICRO_BATCH": "8"}
    variables = {f"TRAINER_{name}": value for name, value in settings.items()}
    ended = start("-m", "trainer.launch", PET_NPROC_PER_NODE="4", **variables).end()
    assert ended.code == 64
    assert f"task {settings['TASK']}: {message}" in ended.stderr


def test_a_missing_compiler_is_reported_at_the_start(tmp_path: Path) -> None:
    before = planted(CXX="no-such-compiler")
    events = run_ranks(1, tmp_path, before, code=64, compile="true", mode="single")
    assert "there is no no-such-compiler on PATH" in events[-1]["message"]


def test_a_parameter_without_a_part_in_the_loss_is_named(tmp_path: Path) -> None:
    """torch gives its number (pytorch 43259)."""
    unused = {"task": "tests.faults.tasks:Unused", "mode": "ddp", "steps": "3"}
    events = run_ranks(2, tmp_path, code=64, **unused)
    assert "no gradient for spare.weight, spare.bias: with ddp the loss" in events[-1]["message"]
