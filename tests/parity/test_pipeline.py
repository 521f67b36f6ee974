"""A deep model cut into stages, with every schedule on four ranks, and the loss of one of them.

Other tasks, and stages with data parallelism: test_table.
"""

import os
import signal
from pathlib import Path

import pytest
import torch

from tests.parity.compare import differences
from tests.parity.conftest import Once
from tests.pool import carry_out, lend
from tests.pool_rank import Case
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

COMMON = {
    "task": "tests.parity.tasks:Deep",
    "steps": "20",
    "eval_steps": "10",
    "checkpoint_steps": "0",
    "precision": "fp64",
    "clip_norm": "0.1",  # below most norms here
    "micro_batch": "4",
}


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (1, {"mode": "mp", "stages": "5"}),
        (4, {"mode": "pp", "pipeline_schedule": "gpipe"}),
        (4, {"mode": "pp", "pipeline_schedule": "1f1b"}),
        (4, {"mode": "pp", "pipeline_schedule": "interleaved-1f1b"}),
        (4, {"mode": "pp", "pipeline_schedule": "interleaved-zb"}),
        (4, {"mode": "pp", "pipeline_schedule": "zbv"}),
    ],
    ids=str,
)
def test_a_cut_model_equals_the_whole(
    ranks: int, settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    """Also the statistics of its BatchNorm, over the same micro-batches as one process has."""
    events = run_ranks(ranks, tmp_path, **COMMON | settings)
    found = differences(once(mode="single", **COMMON), (tmp_path, events))
    assert not {name: value for name, value in found.items() if value > 1e-8}


def _die_in_the_third_step() -> None:
    from trainer.models.stages import Stage

    original, calls = Stage.forward, []

    def forward(self: Stage, x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if os.environ["RANK"] == "1" and len(calls) == 20:  # of 8 micro-batches a step
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, x)

    Stage.forward = forward  # type: ignore[method-assign]


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_a_peer_lost_in_the_middle_of_a_schedule_is_reported(schedule: str, tmp_path: Path) -> None:
    settings = {"MODE": "pp", "PIPELINE_SCHEDULE": schedule, "OUT": str(tmp_path), "LOG": "json"}
    variables = {f"TRAINER_{name}": value for name, value in settings.items()}
    with lend(2, fresh=True) as ranks:
        endings = carry_out(Case(variables, _die_in_the_third_step), ranks, timeout=60)
    assert [ending.code for ending in endings] == [69, -signal.SIGKILL], endings[0].stderr


def test_an_error_in_a_stage_is_named_not_the_stage(tmp_path: Path) -> None:
    settings = {"MODE": "pp", "OUT": str(tmp_path), "LOG": "json"}
    settings["TASK"] = "tests.parity.odd_models:FailsInTheSecondStage"
    variables = {f"TRAINER_{name}": value for name, value in settings.items()}
    with lend(2) as ranks:
        endings = carry_out(Case(variables), ranks, timeout=60)
    assert [ending.code for ending in endings] == [69, 64], endings[1].stderr
    last = endings[1].stderr.splitlines()[-1]
    assert "the first step raised ValueError: these values are odd (" in last
    assert "odd_models.py:" in last
