"""SIGTERM at a given moment: all ranks save the same step, and the run resumes from it."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.conftest import QUICK, ROOT, losses
from tests.ranks import run_ranks
from trainer.checkpoint.find import complete
from trainer.checkpoint.manifest import name_of

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


@pytest.mark.parametrize(
    ("moment", "best"),
    [("step", "0"), ("evaluation", "0"), ("evaluation", "1"), ("checkpoint", "0")],
)
def test_sigterm_in_the_middle_of_it_saves_one_step_and_loses_none(
    moment: str, best: str, whole: dict[int, float], start: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    own = {
        "PYTHONPATH": str(ROOT),
        "TRAINER_OUT": str(run),
        "MOMENT": moment,
        "PET_NPROC_PER_NODE": "2",
        "PET_SHUTDOWN_TIMEOUT": "20",
    }
    settings = TRAINED | {"checkpoint_keep": "9", "checkpoint_keep_best": best}
    trained = {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
    stopped = start("-m", "trainer.launch", **(QUICK | trained | own)).end(timeout=60)
    assert stopped.code == 143, stopped.stderr
    step = stopped.of("fault")[0]["step"]
    assert 0 < step < 60
    assert max(event["step"] for event in stopped.of("checkpoint")) == step
    assert stopped.of("step")[-1]["step"] == step
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    before = [json.loads(line) for line in lines]
    rest = run_ranks(2, run, **settings)[len(before) :]
    assert [event["step"] for event in rest if event.get("action") == "resumed"] == [step]
    assert losses(before + rest) == whole  # bit by bit
    scores = {e["step"]: e["accuracy"] for e in before + rest if e["event"] == "eval"}
    assert list(scores) == [20, 40, 60]  # also the one that the signal ended
    if best == "1":
        for one, score in scores.items():
            checkpoint = complete(str(run / "checkpoints" / name_of(one)))
            assert checkpoint.manifest.metric == score


def counting(folder: Path, milliseconds: str) -> None:
    """Make each step take longer, and write how many all-reduces this rank makes for agreements."""
    os.environ |= {"SLOW": milliseconds, "SLOW_RANK_1": milliseconds}
    made, all_reduce = [0], dist.all_reduce

    def counted(*arguments: Any, **options: Any) -> Any:
        made[0] += "async_op" in options
        (folder / f"made-{os.environ['RANK']}").write_text(str(made[0]))
        return all_reduce(*arguments, **options)

    dist.all_reduce = counted


EVALUATED = 32  # batches; each starts with an agreement


@pytest.mark.parametrize(
    ("milliseconds", "steps", "least", "most"), [("0", 200, 200 / 8, 125), ("120", 12, 12, 12)]
)
def test_short_steps_do_not_agree_each_time_and_long_ones_do(
    milliseconds: str, steps: int, least: float, most: float, tmp_path: Path
) -> None:
    quiet = {"steps": str(steps), "log_steps": "1000", "eval_steps": "0", "checkpoint_steps": "0"}
    plant = partial(counting, tmp_path, milliseconds)
    run_ranks(2, tmp_path, plant, task="tests.faults.tasks:Slow", **quiet)
    made = [int((tmp_path / f"made-{rank}").read_text()) for rank in (0, 1)]
    assert made[0] == made[1]
    assert least <= made[0] - EVALUATED <= most
