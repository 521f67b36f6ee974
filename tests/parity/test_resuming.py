"""A checkpoint goes on under any mode and number of ranks as if nothing had been changed."""

from pathlib import Path

import pytest
import torch

from tests.parity.compare import STEPS, curve, worst
from tests.parity.table import COMMON, OPTIMIZERS, ROWS, TASKS, TOLERANCE
from tests.ranks import run_ranks, weights
from trainer.checkpoint.find import complete

pytestmark = pytest.mark.slow

# each leg on what the one before has saved
DIGITS = ("ddp", "pp x ddp", "fsdp 4", "single", "ddp-zero1 4", "pp x fsdp", "hsdp", "mp", "fsdp")
GPT = ("fsdp x tp", "fsdp", "tp", "single")
FUSED = ("ddp-zero1", "fsdp", "pp gpipe")
WHOLE_MATRICES = ("ddp-zero1", "pp gpipe", "single", "ddp-zero1")


@pytest.mark.parametrize(
    ("task", "optimizer", "legs"),
    [
        ("digits", "adamw", DIGITS),
        ("gpt", "adamw", GPT),
        ("digits", "adamw-fused", FUSED),
        ("digits", "muon", WHOLE_MATRICES),
    ],
)
def test_a_checkpoint_goes_on_under_any_mode_and_world(
    task: str, optimizer: str, legs: tuple[str, ...], tmp_path: Path
) -> None:
    common = COMMON | OPTIMIZERS[optimizer] | {"task": TASKS[task].name, "precision": "fp64"}
    common |= {"schedule": "constant"}  # does not depend on the steps there will be
    whole = run_ranks(1, tmp_path / "whole", mode="single", **common)
    ends = [STEPS * number // len(legs) for number in range(1, len(legs) + 1)]
    for end, row in zip(ends, map(ROWS.__getitem__, legs), strict=True):
        settings = common | {"steps": str(end), "mode": row.mode, "mesh": row.mesh} | row.settings
        events = run_ranks(row.ranks, tmp_path / "parts", **settings)
    assert [e["step"] for e in events if e.get("action") == "resumed"] == ends[:-1]
    assert worst(curve(whole, "loss"), curve(events, "loss")) < TOLERANCE["fp64"]


@pytest.mark.parametrize(
    ("task", "mode", "ranks", "mesh"),
    [
        ("tasks:Normed", "ddp", 2, ""),
        ("tasks:Normed", "fsdp", 2, ""),
        ("tasks:Normed", "pp", 4, "pp=2,dp_shard=2"),
        ("odd_models:Odd", "fsdp", 2, ""),
    ],
)
def test_what_ranks_evaluate_is_what_they_save(
    task: str, mode: str, ranks: int, mesh: str, tmp_path: Path
) -> None:
    """Each has had samples of its own, and so its own running statistics: the first one's are taken."""
    common = COMMON | {"task": f"tests.parity.{task}", "precision": "fp64"}
    run_ranks(ranks, tmp_path, mode=mode, mesh=mesh, **common)
    events = run_ranks(1, tmp_path, mode="single", **common)
    together, alone = [event["loss"] for event in events if event["event"] == "eval"]
    assert together == pytest.approx(alone, rel=1e-12)


def test_a_state_is_split_over_more_ranks_than_there_are_tensors(tmp_path: Path) -> None:
    common = COMMON | {"task": "synthetic", "global_batch": "40", "precision": "fp64"}
    common |= {"schedule": "constant"}
    whole = run_ranks(1, tmp_path / "whole", mode="single", **common)
    for steps in ("10", "20"):  # of 5 ranks the last has none of the 4
        parts = common | {"mode": "ddp-zero1", "steps": steps}
        events = run_ranks(5, tmp_path / "parts", **parts)
    assert worst(curve(whole, "loss"), curve(events, "loss")) < TOLERANCE["fp64"]


def test_a_run_resumed_by_force_goes_by_its_own_settings(tmp_path: Path) -> None:
    common = COMMON | {"task": "digits", "mode": "single"}
    run_ranks(1, tmp_path, **(common | {"steps": "2", "weight_decay": "0.1", "momentum": "0.5"}))
    changed = common | {"steps": "4", "weight_decay": "0", "momentum": "0.8"}
    run_ranks(1, tmp_path, **(changed | {"resume": "force"}))
    saved = complete(str(tmp_path / "checkpoints" / "step-00000004")).manifest.values
    assert saved["optimizer.param_groups.fc1.weight.weight_decay"] == 0
    assert saved["optimizer.param_groups.fc1.weight.momentum"] == 0.8


def test_resuming_with_the_same_world_is_exact(tmp_path: Path) -> None:
    common = COMMON | {"task": "digits", "mode": "ddp", "schedule": "constant"}
    run_ranks(2, tmp_path / "whole", **common)
    run_ranks(2, tmp_path / "parts", **(common | {"steps": "7"}))
    run_ranks(2, tmp_path / "parts", **common)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)
