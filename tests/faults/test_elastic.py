"""An elastic job on several hosts: nodes join, leave or are lost, but no sample is lost."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import losses
from tests.faults.cluster import Job
from tests.faults.hosts import network, why_not
from tests.faults.lost import returns
from tests.ranks import run_ranks
from trainer.engine import ledger

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

INTERVAL = 16  # steps between checkpoints
TRAINED = {
    "epochs": "3",
    "global_batch": "32",  # cannot be divided by three ranks
    "precision": "fp64",
    "checkpoint_steps": str(INTERVAL),
    "eval_steps": "0",
}
SETTINGS = {f"TRAINER_{name.upper()}": value for name, value in TRAINED.items()} | {
    "TRAINER_LEDGER": "true",
    "TRAINER_LAST_CALL": "2",
}


def launches(job: Job) -> list[dict[str, Any]]:
    return [event for event in job.events if event["event"] == "launch"]


def wait_for_world(job: Job, size: int, *, number: int) -> float:
    """Wait until round `number` trains with `size` ranks; return how many seconds it took."""
    began = time.monotonic()
    while len(launches(job)) < number or job.events[-1]["event"] != "step":
        assert time.monotonic() - began < 60, job.stderr()
        time.sleep(0.05)
    assert launches(job)[number - 1]["world_size"] == size, job.stderr()
    job.wait_for_step(job.events[-1]["step"] + 5)
    return time.monotonic() - began


def test_nodes_join_and_leave_and_every_sample_is_used_once_an_epoch(tmp_path: Path) -> None:
    whole = run_ranks(1, tmp_path / "whole", task="synthetic", **TRAINED)
    with network() as net:
        hosts = [net.host() for _ in range(3)]
        # slow enough that the job still trains when a node joins, even if the node starts slowly
        job = Job(tmp_path / "job", hosts, SETTINGS, elastic="1:3", pace=0.2)
        first = job.start_one(hosts[0])
        second = job.start_one(hosts[1])
        wait_for_world(job, 2, number=1)

        third = job.start_one(hosts[2])  # 2 -> 3
        wait_for_world(job, 3, number=2)

        third.process.send_signal(signal.SIGTERM)  # one node leaves in order, ...
        assert third.process.wait(20) == 143, job.stderr()
        wait_for_world(job, 2, number=3)
        hosts[1].die()  # ... and one is lost: 3 -> 1
        hosts[1].mend()
        assert second.process.wait(1) == -signal.SIGKILL
        wait_for_world(job, 1, number=4)

        again = job.start_one(hosts[1])  # 1 -> 2
        wait_for_world(job, 2, number=5)
        job.set_pace(0)
        assert first.process.wait(120) == 0, job.stderr()
        assert again.process.wait(10) == 0, job.stderr()

    assert "Traceback" not in job.stderr()
    mine, expected = losses(job.events), losses(whole)
    assert mine.keys() == expected.keys()
    assert mine == pytest.approx(expected, rel=1e-8)
    history = ledger.read(job.folder / "run")
    assert "used once in each of 3 epochs" in ledger.check(history)
    # a clean stop loses no step; a lost node loses at most the steps since the last checkpoint
    gone_back = returns(job.events)
    assert not [went for went in gone_back if went.beyond(INTERVAL)]
    # a rank may have finished one step more than the first rank could report
    assert 0 <= history.repeated - sum(went.lost for went in gone_back) <= len(gone_back)
    assert [event["world_size"] for event in launches(job)] == [2, 3, 2, 1, 2]
