"""Where each rank's time goes: two real ranks, one slow in reading, one in computing."""

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.ranks import run_ranks
from trainer.config.exits import Exit
from trainer.data.sets import Tensors
from trainer.report.goodput import PHASES
from trainer.report.history import read
from trainer.report.page.charts import draw
from trainer.tasks import synthetic

pytestmark = pytest.mark.slow

SLOW = 0.03  # seconds
STEPS = 480


@dataclass(frozen=True)
class _SlowOnRank0(Tensors):
    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        if os.environ["RANK"] == "0":
            time.sleep(SLOW)
        return super().batch(indices)


class Slow(synthetic.Task):
    """Rank 0 reads slowly, rank 1 computes slowly."""

    def data(self, *, train: bool) -> Tensors:
        whole = super().data(train=train)
        return _SlowOnRank0(whole.inputs, whole.targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if os.environ["RANK"] == "1" and outputs.requires_grad:
            time.sleep(SLOW)
        return super().loss(outputs, targets)


def test_each_rank_is_seen_where_it_is_slow(tmp_path: Path) -> None:
    run_ranks(
        2,
        tmp_path,
        task="tests.report.test_phases:Slow",
        mode="ddp",
        steps=str(STEPS),
        eval_steps="0",
        checkpoint_steps="0",
    )
    run = read(tmp_path)
    spent: dict[int, Counter[str]] = {0: Counter(), 1: Counter()}
    for event in run.usage:
        for one in event["ranks"]:
            spent[one["rank"]].update({k: v for k, v in one.items() if k.endswith("_s")})
    assert len(run.usage) >= 2, "it was to train for more than ten seconds"
    for rank, of in spent.items():
        # Compared with the other rank, because on a busy machine the work of both takes longer.
        mine = "data_s" if rank == 0 else "compute_s"
        assert of[mine] - spent[1 - rank][mine] > SLOW * STEPS / 2, (rank, spent)
        assert of["import_s"] > 0
        assert of["join_s"] > 0
        assert of["communication_s"] > 0
        assert of["preflight_s"] > 0
    # All time since the start of the process is divided.
    phases = sum(spent[0][f"{name}_s"] for name in PHASES)
    assert phases == pytest.approx(run.usage[-1]["time"] - run.launch["began"], rel=0.05)
    # Also the last window, which is shorter.
    ending = run.attempts[-1].ending
    assert ending["time"] - run.usage[-1]["time"] < 3
    titles = {chart.title: chart for chart in draw([run])}
    assert "rank 0" in titles["Where each rank's time went"].svg


def test_the_time_of_a_run_of_one_rank_is_divided_too(start: Any, tmp_path: Path) -> None:
    variables = {"TRAINER_TASK": "synthetic", "TRAINER_STEPS": "2000", "TRAINER_OUT": str(tmp_path)}
    assert start("-m", "trainer", **variables).end().code == 0
    run = read(tmp_path)
    parts = [one for event in run.usage for one in event["ranks"]]
    spent = {name: sum(one.get(f"{name}_s", 0.0) for one in parts) for name in PHASES}
    wall = run.usage[-1]["time"] - run.launch["began"]
    assert sum(spent.values()) == pytest.approx(wall, rel=0.05), spent
    assert spent["compute"] > 0
    assert spent["communication"] == 0
    ending = run.attempts[-1].ending
    assert ending["time"] - run.usage[-1]["time"] < 3


def test_the_time_before_a_stop_is_told_too(start: Any, tmp_path: Path) -> None:
    variables = {"TRAINER_TASK": "synthetic", "TRAINER_STEPS": "100000", "TRAINER_LOG": "json"}
    variables |= {"TRAINER_OUT": str(tmp_path), "PET_NPROC_PER_NODE": "2"}
    started = start("-m", "trainer.launch", **variables)
    started.wait_for('"event": "usage"')
    time.sleep(4)  # less than the ten seconds to the next one
    started.process.send_signal(signal.SIGTERM)
    ended = started.end()
    assert ended.code == Exit.STOPPED
    first, last = ended.of("usage")
    (stopped,) = ended.of("fault")
    assert stopped["time"] - last["time"] < 3
    for one in last["ranks"]:
        spent = sum(one[f"{name}_s"] for name in PHASES if f"{name}_s" in one)
        # A rank writes it every second, so what another rank reads may be a second old at both ends.
        assert spent == pytest.approx(last["time"] - first["time"], abs=2)
