"""NaN and infinite gradients: the step is skipped, or the run rolls back, or it ends with 72."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.cluster import faults
from tests.faults.tasks import planted
from tests.ranks import run_ranks, weights

pytestmark = pytest.mark.slow

QUICK = {"steps": "16", "eval_steps": "0", "checkpoint_steps": "4", "checkpoint_keep": "9"}
NUMBERLESS = QUICK | {"task": "tests.faults.tasks:Numberless"}
POISONED = QUICK | {"task": "tests.faults.tasks:Poisoned"}


def leave_out_the_sixth_update() -> None:
    """Leave out one update, for comparison with a run that skips the step."""
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        leave_out(kind)


def leave_out(kind: Any) -> None:
    step, calls = kind.step, 0

    def all_but_one(self: Any, closure: None = None) -> None:
        nonlocal calls
        calls += 1
        if calls != 6:
            step(self, closure)

    kind.step = all_but_one


def planted_where_the_device_decides(**fault: str) -> Callable[[], None]:
    """Return what `planted` returns; with it, a fused optimiser also skips steps itself, as on a GPU."""
    return partial(_let_the_device_decide, fault)


def _let_the_device_decide(fault: dict[str, str]) -> None:
    from trainer.engine.step import nonfinite

    def always(run: object) -> bool:
        return run is not None

    planted(**fault)()
    nonfinite.device_decides = always


# By what skips the step: how to plant a fault, and the settings.
WHO: dict[str, tuple[Callable[..., Callable[[], None]], dict[str, str]]] = {
    "host": (planted, {}),
    # A step event would need the decision about the step at once.
    "device": (
        planted_where_the_device_decides,
        {"optimizer": "adamw-fused", "lr": "0.003", "log_steps": "100"},
    ),
}


@pytest.mark.parametrize(
    ("mode", "ranks", "kind", "who"),
    [
        ("single", 1, "gradient", "host"),
        ("ddp", 2, "gradient", "host"),
        ("ddp", 2, "loss", "host"),
        ("fsdp", 2, "gradient", "host"),
        ("single", 1, "gradient", "device"),
        ("ddp", 2, "loss", "device"),
    ],
)
def test_one_bad_step_on_one_rank_is_skipped_by_all(
    mode: str, ranks: int, kind: str, who: str, tmp_path: Path
) -> None:
    plant, settings = WHO[who]
    fault = plant(NUMBERLESS=f"{kind}:6")
    events = run_ranks(ranks, tmp_path / "skipped", fault, mode=mode, **NUMBERLESS | settings)
    plain = QUICK | {"task": "synthetic", "mode": mode} | settings
    run_ranks(ranks, tmp_path / "left out", leave_out_the_sixth_update, **plain)
    (skipped,) = faults(events, "nonfinite")
    assert (skipped["step"], skipped["skipped"], skipped["in_a_row"]) == (6, 1, 1)
    assert events[-1]["skipped_steps"] == 1
    one, other = weights(tmp_path / "skipped"), weights(tmp_path / "left out")
    assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("who", WHO)
def test_statistics_that_the_model_replaces_stay_numbers(who: str, tmp_path: Path) -> None:
    plant, settings = WHO[who]
    poisoned = POISONED | settings | {"task": "tests.faults.tasks:PoisonedMean"}
    events = run_ranks(1, tmp_path, plant(POISONED="6"), **poisoned)
    assert events[-1]["skipped_steps"] == 1
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())


@pytest.mark.parametrize("who", WHO)
def test_a_passing_fault_is_rolled_back_and_leaves_no_trace(who: str, tmp_path: Path) -> None:
    plant, settings = WHO[who]
    fault, allowance = plant(NUMBERLESS="gradient:9,10,11"), {"nonfinite_allowance": "3"}
    wrong = run_ranks(2, tmp_path / "wrong", fault, **NUMBERLESS | settings | allowance)
    plain = QUICK | {"task": "synthetic"} | settings
    right = run_ranks(2, tmp_path / "right", **plain)
    (back,) = faults(wrong, "rolled_back")
    # step 8's checkpoint holds the weights that step 9 failed with
    assert (back["step"], back["to"]) == (11, 4)
    one, other = weights(tmp_path / "wrong"), weights(tmp_path / "right")
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert wrong[-1]["accuracy"] == right[-1]["accuracy"]


@pytest.mark.parametrize("who", WHO)
def test_the_same_failure_after_a_rollback_is_72(who: str, tmp_path: Path) -> None:
    plant, settings = WHO[who]
    fault, settings = plant(POISONED="9,10,11"), POISONED | settings
    events = run_ranks(2, tmp_path, fault, code=72, nonfinite_allowance="3", **settings)
    assert [fault["step"] for fault in faults(events, "nonfinite")] == [9, 10, 11, 9, 10, 11]
    assert len(faults(events, "rolled_back")) == 1
    assert events[-1]["code"] == 72
    assert (
        "steps 9 to 11: the loss or the gradient was not finite, again after going back to "
        in (events[-1]["message"])
    )


@pytest.mark.parametrize("who", WHO)
def test_within_the_allowance_training_goes_on_and_statistics_stay_clean(
    who: str, tmp_path: Path
) -> None:
    plant, settings = WHO[who]
    fault, settings = plant(POISONED="9,10,12"), POISONED | settings
    events = run_ranks(1, tmp_path, fault, nonfinite_allowance="3", **settings)
    assert events[-1]["skipped_steps"] == 3
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert "NaN" not in text  # NaN is not JSON
    assert events[-1]["accuracy"] > 0.2
    saved = weights(tmp_path)
    assert all(value.isfinite().all() for value in saved.values())
    assert saved["0.num_batches_tracked"] == 13  # of 16 steps


def test_without_an_earlier_checkpoint_it_is_72_at_once(tmp_path: Path) -> None:
    plant = planted(POISONED="2,3,4")
    events = run_ranks(1, tmp_path, plant, code=72, nonfinite_allowance="3", **POISONED)
    assert "there is no checkpoint from before step 1" in events[-1]["message"]
    assert not (tmp_path / "checkpoints").exists()
