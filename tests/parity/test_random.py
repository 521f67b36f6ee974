"""Random numbers that a task draws without a seed are the same on every rank and in every attempt."""

from pathlib import Path
from typing import Any

import pytest

from tests.parity.compare import curve
from tests.parity.random_tasks import unseed
from tests.pool import carry_out, lend
from tests.pool_rank import Case
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

TASKS = "tests.parity.random_tasks:"
COMMON = {"steps": "20", "precision": "fp64", "lr": "0.01"}


def losses_and_score(events: list[dict[str, Any]]) -> list[float]:
    (evaluation,) = [event for event in events if event["event"] == "eval"]
    return [*curve(events, "loss").tolist(), evaluation["loss"], evaluation["accuracy"]]


@pytest.mark.parametrize(
    "task", ["SplitByTorch", "SplitByNumpy", "SplitByPython", "SplitWhenMade", "BlurredWhenRead"]
)
def test_random_splits_and_samples_are_the_same_on_every_rank_and_no_test_sample_is_for_training(
    task: str, tmp_path: Path
) -> None:
    found = [
        losses_and_score(
            run_ranks(
                ranks, tmp_path / mode, unseed, task=TASKS + task, mode=mode, workers="0", **COMMON
            )
        )
        for ranks, mode in ((1, "single"), (2, "ddp"))
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-12)


def test_layers_draw_the_same_after_a_resume_and_in_a_repeated_evaluation(tmp_path: Path) -> None:
    settings = COMMON | {"task": f"{TASKS}Noisy", "mode": "single"}
    settings |= {"checkpoint_steps": "10", "checkpoint_keep_every": "10"}
    whole = run_ranks(1, tmp_path / "whole", unseed, **settings)
    again = {"resume": str(tmp_path / "whole/checkpoints/step-00000010")}
    half = run_ranks(1, tmp_path / "half", unseed, **settings | again)
    losses = [event["loss"] for event in half if event["event"] == "step"]
    assert losses == curve(whole, "loss")[10:].tolist()
    repeated = run_ranks(1, tmp_path / "whole", unseed, **settings)
    evaluations = [e for e in (*half, *repeated) if e["event"] == "eval"]
    assert len(evaluations) == 3
    assert len({(e["loss"], e["accuracy"]) for e in evaluations}) == 1


@pytest.mark.parametrize(
    ("task", "times"), [("DrawnAlike", 1), ("SplitByTorch", 0), ("DrawnWhenRead", 0)]
)
def test_sets_whose_samples_are_drawn_alike_are_noticed(
    task: str,
    times: int,
    tmp_path: Path,
) -> None:
    variables = {"TRAINER_TASK": TASKS + task, "TRAINER_STEPS": "1", "TRAINER_OUT": str(tmp_path)}
    with lend(1) as ranks:
        (ending,) = carry_out(Case(variables), ranks, timeout=60)
    assert ending.code == 0, ending.stderr
    assert ending.stderr.count("the first training sample is also the first test sample") == times
