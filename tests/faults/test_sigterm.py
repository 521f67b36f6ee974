"""SIGTERM at a chosen moment: all ranks save the same step, and the run resumes from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, ROOT
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

TRAINED = {
    "task": "tests.faults.tasks:Disturbed",
    "steps": "60",
    "checkpoint_steps": "10",
    "eval_steps": "20",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return losses(run_ranks(2, tmp_path_factory.mktemp("whole"), **TRAINED))


def losses(events: list[dict[str, Any]]) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


@pytest.mark.parametrize("moment", ["step", "evaluation", "checkpoint"])
def test_sigterm_in_the_middle_of_it_saves_one_step_and_loses_none(
    moment: str, whole: dict[int, float], start: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    own = {
        "PYTHONPATH": str(ROOT),
        "TRAINER_OUT": str(run),
        "MOMENT": moment,
        "PET_NPROC_PER_NODE": "2",
        "PET_SHUTDOWN_TIMEOUT": "20",
    }
    trained = {f"TRAINER_{name.upper()}": value for name, value in TRAINED.items()}
    stopped = start("-m", "trainer.launch", **(QUICK | trained | own)).end(timeout=60)
    assert stopped.code == 143, stopped.stderr
    step = stopped.of("fault")[0]["step"]
    assert 0 < step < 60
    assert max(event["step"] for event in stopped.of("checkpoint")) == step
    assert stopped.of("step")[-1]["step"] == step
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    before = [json.loads(line) for line in lines]
    rest = run_ranks(2, run, **TRAINED)[len(before) :]
    assert [event["step"] for event in rest if event.get("action") == "resumed"] == [step]
    assert losses(before + rest) == whole  # bit by bit
