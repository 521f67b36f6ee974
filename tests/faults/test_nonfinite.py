"""NaN and infinite gradients: the step is skipped, the run rolls back, or ends with 72."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.tasks import planted
from tests.ranks import run_ranks, weights

pytestmark = pytest.mark.slow

QUICK = {"steps": "16", "eval_steps": "0", "checkpoint_steps": "4", "checkpoint_keep": "9"}
NUMBERLESS = QUICK | {"task": "tests.faults.tasks:Numberless"}
POISONED = QUICK | {"task": "tests.faults.tasks:Poisoned"}


def faults(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "fault" and event["kind"] == kind]


def leave_out_the_sixth_update() -> None:
    """Leave out one update: a run that skips the step must equal this one."""
    step, calls = torch.optim.SGD.step, 0

    def all_but_one(self: torch.optim.SGD, closure: None = None) -> None:
        nonlocal calls
        calls += 1
        if calls != 6:
            step(self, closure)

    torch.optim.SGD.step = all_but_one  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("mode", "ranks", "kind"),
    [
        ("single", 1, "gradient"),
        ("ddp", 2, "gradient"),
        ("ddp", 2, "loss"),
        ("fsdp", 2, "gradient"),
    ],
)
def test_one_bad_step_on_one_rank_is_skipped_by_all(
    mode: str, ranks: int, kind: str, tmp_path: Path
) -> None:
    plant = planted(NUMBERLESS=f"{kind}:6")
    events = run_ranks(ranks, tmp_path / "skipped", plant, mode=mode, **NUMBERLESS)
    plain = QUICK | {"task": "synthetic", "mode": mode}
    run_ranks(ranks, tmp_path / "left out", leave_out_the_sixth_update, **plain)
    (skipped,) = faults(events, "nonfinite")
    assert (skipped["step"], skipped["skipped"], skipped["in_a_row"]) == (6, 1, 1)
    assert events[-1]["skipped_steps"] == 1
    one, other = weights(tmp_path / "skipped"), weights(tmp_path / "left out")
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_passing_fault_is_rolled_back_and_leaves_no_trace(tmp_path: Path) -> None:
    plant = planted(NUMBERLESS="gradient:9,10,11")
    wrong = run_ranks(2, tmp_path / "wrong", plant, nonfinite_allowance="3", **NUMBERLESS)
    plain = QUICK | {"task": "synthetic"}
    right = run_ranks(2, tmp_path / "right", **plain)
    (back,) = faults(wrong, "rolled_back")
    # step 8's checkpoint holds the weights that step 9 failed with
    assert (back["step"], back["to"]) == (11, 4)
    one, other = weights(tmp_path / "wrong"), weights(tmp_path / "right")
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert wrong[-1]["accuracy"] == right[-1]["accuracy"]


def test_the_same_failure_after_a_rollback_is_72(tmp_path: Path) -> None:
    plant = planted(POISONED="9,10,11")
    events = run_ranks(2, tmp_path, plant, code=72, nonfinite_allowance="3", **POISONED)
    assert [fault["step"] for fault in faults(events, "nonfinite")] == [9, 10, 11, 9, 10, 11]
    assert len(faults(events, "rolled_back")) == 1
    assert events[-1]["code"] == 72
    assert (
        "steps 9 to 11: the loss or the gradient was not finite, again after going back to "
        in (events[-1]["message"])
    )


def test_within_the_allowance_training_goes_on_and_statistics_stay_clean(tmp_path: Path) -> None:
    plant = planted(POISONED="9,10,12")
    events = run_ranks(1, tmp_path, plant, nonfinite_allowance="3", **POISONED)
    assert events[-1]["skipped_steps"] == 3
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert "NaN" not in text  # which is not JSON
    assert events[-1]["accuracy"] > 0.2
    saved = weights(tmp_path)
    assert all(value.isfinite().all() for value in saved.values())
    assert saved["0.num_batches_tracked"] == 13  # of 16 steps


def test_without_an_earlier_checkpoint_it_is_72_at_once(tmp_path: Path) -> None:
    plant = planted(POISONED="2,3,4")
    events = run_ranks(1, tmp_path, plant, code=72, nonfinite_allowance="3", **POISONED)
    assert "there is no checkpoint from before step 1" in events[-1]["message"]
    assert not (tmp_path / "checkpoints").exists()
