"""A user's task gets the events of rank 0; its errors do not end a run that has started."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_ranks
from tests.unit.trainer.engine.wrong_tasks import Right

pytestmark = pytest.mark.slow

STEPS = {"steps": "4", "checkpoint_steps": "2", "global_batch": "8"}


class Tracked(Right):
    """Writes each event to a file in its run's folder, and then changes the event."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._file = settings.run_folder / f"heard-{os.environ['RANK']}"

    def on_event(self, event: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(event) + "\n")
        event.clear()


class Unreachable(Right):
    def on_event(self, event: Any) -> None:
        if event["event"] != "launch":
            raise ConnectionError("no tracker there")


def test_rank_0_hears_what_is_reported(tmp_path: Path) -> None:
    events = run_ranks(2, tmp_path, task=f"{__name__}:Tracked", mode="ddp", **STEPS)
    heard = [json.loads(line) for line in (tmp_path / "heard-0").read_text().splitlines()]
    assert heard == [event for event in events if event["event"] not in ("usage", "fault")]
    assert {"launch", "step", "eval", "checkpoint", "summary"} == {one["event"] for one in heard}
    assert not (tmp_path / "heard-1").exists()


def test_a_tracker_that_cannot_be_reached_costs_a_warning(start: Any) -> None:
    variables = {f"TRAINER_{name.upper()}": value for name, value in STEPS.items()}
    task = f"{__name__}:Unreachable"
    ended = start("-m", "trainer", TRAINER_TASK=task, TRAINER_LOG="json", **variables).end()
    assert ended.code == 0, ended.stderr
    assert ended.events[-1]["event"] == "summary"
    message = "on_event() raised ConnectionError: no tracker there"
    assert ended.stderr.count(message) == 1
