"""Local SGD: what it has in common with ddp, and that a checkpoint between two averagings is exact."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.tasks import planted
from tests.parity.compare import curve, worst
from tests.ranks import run_ranks, weights

COMMON = {
    "task": "digits",
    "steps": "20",
    "eval_steps": "0",
    "checkpoint_steps": "0",
    "precision": "fp64",
    "schedule": "constant",
}
DILOCO = {"outer_lr": "0.7", "outer_momentum": "0.9"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": "16"},
        {"micro_batch": "4"},
        {"momentum": "0"},
        {"momentum": "0", "local_state": "reset"},
    ],
    ids=str,
)
def test_averaging_after_every_step_is_ddp(options: dict[str, str], tmp_path: Path) -> None:
    """With momentum averaged too, and without clipping, which goes by each rank's own norm."""
    common = COMMON | options | {"clip_norm": "0"}
    expected = run_ranks(2, tmp_path / "ddp", mode="ddp", **common)
    events = run_ranks(2, tmp_path / "local", mode="localsgd", local_steps="1", **common)
    assert worst(curve(expected, "loss"), curve(events, "loss")) < 1e-10
    one, other = weights(tmp_path / "ddp"), weights(tmp_path / "local")
    assert all(torch.allclose(one[name], other[name], rtol=1e-10) for name in one)
    # The mean of the ranks' norms, so never less than the norm of the mean.
    assert bool((curve(events, "grad_norm") >= curve(expected, "grad_norm")).all())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, DILOCO, {"local_state": "reset"}], ids=["average", "diloco", "reset"]
)
def test_going_on_from_between_two_averagings_is_exact(
    options: dict[str, str], tmp_path: Path
) -> None:
    settings: dict[str, Any] = COMMON | options | {"mode": "localsgd", "local_steps": "8"}
    whole = run_ranks(2, tmp_path / "whole", **(settings | {"checkpoint_steps": "5"}))
    run_ranks(2, tmp_path / "parts", **(settings | {"steps": "5"}))
    events = run_ranks(2, tmp_path / "parts", **(settings | {"checkpoint_steps": "5"}))
    assert curve(whole, "loss").tolist() == curve(events, "loss").tolist()
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)
    # What all ranks evaluated together is what one process makes of the checkpoint.
    alone = run_ranks(1, tmp_path / "parts", **(settings | {"mode": "single", "resume": "force"}))
    losses = [event["loss"] for event in alone if event["event"] == "eval"]
    assert losses[-1] == pytest.approx(losses[-2], rel=1e-12)


@pytest.mark.slow
def test_going_back_to_a_checkpoint_begins_the_period_anew(tmp_path: Path) -> None:
    settings: dict[str, Any] = COMMON | DILOCO | {"mode": "localsgd", "local_steps": "8"}
    settings |= {"task": "tests.faults.tasks:Numberless", "checkpoint_steps": "5"}
    settings |= {"nonfinite_allowance": "2"}
    losses = []
    for name, calls in (("clean", "1000"), ("back", "13,14")):
        plant = planted(NUMBERLESS=f"gradient:{calls}")
        events = run_ranks(2, tmp_path / name, plant, **settings)
        losses.append({e["step"]: e["loss"] for e in events if e["event"] == "step"})
    assert [event["to"] for event in events if event.get("kind") == "rolled_back"] == [10]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_frozen_weights_stay_bit_by_bit(tmp_path: Path) -> None:
    """The sum of three equal numbers is rounded, so a third of it may be another number."""
    settings = COMMON | {"task": "synthetic", "precision": "fp32", "freeze": "0.*"}
    settings |= {"mode": "localsgd", "local_steps": "1", "global_batch": "33"}
    run_ranks(1, tmp_path / "first", **settings | {"mode": "single", "steps": "1"})
    run_ranks(3, tmp_path / "last", **settings)
    first, last = weights(tmp_path / "first"), weights(tmp_path / "last")
    assert [name for name in first if first[name].equal(last[name])] == ["0.weight", "0.bias"]


@pytest.mark.slow
def test_the_outer_optimiser_leaves_a_parameter_of_whole_numbers_alone(tmp_path: Path) -> None:
    settings = COMMON | DILOCO | {"task": "tests.parity.odd_models:Picks", "mode": "localsgd"}
    run_ranks(2, tmp_path, **settings)
    assert weights(tmp_path)["0.places"].tolist() == [*reversed(range(64))]


@pytest.mark.slow
def test_ranks_may_use_different_experts(tmp_path: Path) -> None:
    """AdamW has no state of an expert that a rank has not used yet."""
    settings = COMMON | {"task": "tests.parity.own_tasks:Experts", "optimizer": "adamw"}
    settings |= {"mode": "localsgd", "local_steps": "2", "global_batch": "4", "lr": "0.001"}
    whole = run_ranks(4, tmp_path / "whole", **(settings | {"checkpoint_steps": "6"}))
    run_ranks(4, tmp_path / "parts", **(settings | {"steps": "6"}))
    events = run_ranks(4, tmp_path / "parts", **(settings | {"checkpoint_steps": "6"}))
    assert curve(whole, "loss").tolist() == curve(events, "loss").tolist()


@pytest.mark.slow
def test_a_long_period_still_learns(tmp_path: Path) -> None:
    common = {"task": "digits", "epochs": "4", "eval_steps": "0", "schedule": "cosine"}
    ddp = run_ranks(2, tmp_path / "ddp", mode="ddp", **common)
    for name, options in (("average", {}), ("diloco", DILOCO)):
        settings = common | {"mode": "localsgd", "local_steps": "16"} | options
        local = run_ranks(2, tmp_path / name, **settings)
        assert ddp[-1]["accuracy"] - local[-1]["accuracy"] < 0.03
        assert worst(curve(ddp, "loss"), curve(local, "loss")) > 1e-3
