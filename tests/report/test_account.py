"""A run's account of its time, against an adversary that kills it and keeps an account of its own."""

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT
from trainer.report.history import read

pytestmark = pytest.mark.slow

STEPS = 120
KILLED_AT = (25, 70)  # steps
DOWN = 3.0  # seconds until the next attempt


def attempts(start: Any, run: Path, notes: Path, *, steps: int, killed_at: tuple[int, ...]) -> Any:
    """Run to the end over kills; return the seconds by cause as seen from outside."""
    settings = {
        "TRAINER_TASK": "tests.report.timed:Task",
        "TRAINER_MODE": "single",
        "TRAINER_OUT": str(run),
        "TRAINER_STEPS": str(steps),
        "TRAINER_LOG_STEPS": "1",
        "TRAINER_CHECKPOINT_STEPS": "10",
        "TRAINER_EVAL_STEPS": "40",
        "TRAINER_LOG": "json",
        "TIMED": str(notes),
        "PYTHONPATH": str(ROOT),
    }
    own: dict[str, float] = defaultdict(float)
    last_end = 0.0
    for step in (*killed_at, None):
        before = len(notes.read_text().splitlines()) if notes.exists() else 0
        process = start("-m", "trainer", **settings)
        created = psutil.Process(process.process.pid).create_time()
        own["down"] += created - last_end if last_end else 0.0
        if step is None:
            assert process.end(timeout=600).code == 0
        else:
            process.wait_for(f'"step": {step},')
            process.process.kill()
            process.process.wait()
        last_end = time.time()
        noted = [json.loads(line) for line in notes.read_text().splitlines()[before:]]
        first = next(i for i, one in enumerate(noted) if one["kind"] == "training")
        # The samples of the first step come right before it; two were read to try the task.
        began = [one["began"] for one in noted[:first] if one["kind"] == "data"][-32]
        own["start"] += began - created
        own["end"] += last_end - noted[-1]["ended"] if step is None else 0.0
        for one in noted:
            if one["began"] >= began:
                own[one["kind"]] += one["ended"] - one["began"]
                own["steps"] += one["kind"] == "training"
        if step is not None:
            time.sleep(DOWN)
    of_a_step = own["training"] / own.pop("steps")
    own["repeated"] = own["training"] - of_a_step * steps
    own["training"] = of_a_step * steps
    return dict(own)


def test_each_cause_is_within_two_percent_of_what_an_adversary_knows(
    start: Any, tmp_path: Path
) -> None:
    began = time.time()
    run, notes = tmp_path / "run", tmp_path / "notes"
    own = attempts(start, run, notes, steps=STEPS, killed_at=KILLED_AT)
    wall = time.time() - began
    account = read(run).account
    assert account.wall == pytest.approx(wall, rel=0.02)
    spent = account.by_cause()
    assert sum(spent.values()) == pytest.approx(account.wall, rel=0.01)
    for cause in own.keys() | spent.keys():
        assert abs(own.get(cause, 0) - spent.get(cause, 0)) < 0.02 * wall, (cause, own, spent)
