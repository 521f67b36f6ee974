"""A check for regressions: the time that the trainer adds to a step of a small net."""

import json
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

BOUND = 1.15


@pytest.mark.slow
def test_a_step_costs_little_more_than_a_bare_loops(start: Any, tmp_path: Path) -> None:
    """Ninety times twenty steps of each, in turn in one process.

    The bare loop clips and has a schedule, like users' loops. The fastest tenth of each is compared,
    because other processes slow some: with the events of every tenth step, without a checkpoint's save.
    """
    started = start(
        "-m",
        "trainer",
        TRAINER_TASK="tests.unit.trainer.engine.step_cost:Task",
        TRAINER_STEPS="2000",
        TRAINER_MICRO_BATCH="32",
        TRAINER_EVAL_STEPS="0",
        TRAINER_OUT=str(tmp_path),
    )
    ended = started.end()
    assert ended.code == 0, ended.stderr
    pairs = json.loads((tmp_path / "pairs.json").read_text(encoding="utf-8"))[-90:]
    assert len(pairs) == 90
    trained, bare = (quantiles(times, n=10)[0] for times in zip(*pairs, strict=True))
    print(f"step: {trained / bare:.3f} of a bare loop's")
    assert trained / bare < BOUND
