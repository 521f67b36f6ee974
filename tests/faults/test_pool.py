"""The ranks that tests share: no case affects the next, and a rank that fails is replaced."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import clean_environment, losses, wait_for
from tests.pool import carry_out, lend
from tests.pool_rank import Case
from tests.ranks import is_there, run_ranks

pytestmark = pytest.mark.slow

QUICK = {"task": "digits", "steps": "5", "eval_steps": "0", "checkpoint_steps": "0"}
HYBRID = {"mode": "hsdp", "mesh": "dp_replicate=2,dp_shard=2"}


def test_a_case_is_the_same_whatever_ran_before_it(tmp_path: Path) -> None:
    cases = [
        (2, {"mode": "fsdp"}),
        (2, {"mode": "ddp", "precision": "fp64", "task": "charlm-gru", "seed": "3"}),
        (4, HYBRID),
        (1, {"mode": "single", "optimizer": "adamw", "collective_timeout": "7"}),
        (4, {"mode": "fsdp", "precision": "bf16"}),
    ]
    found = [
        [
            losses(run_ranks(ranks, folder / str(number), **QUICK | case))
            for number, (ranks, case) in enumerate(cases)
        ]
        for folder in (tmp_path / "first", tmp_path / "again")
    ]
    assert found[0] == found[1]


def die() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    if os.environ["RANK"] == "1":
        time.sleep(600)


def fail() -> None:
    raise ZeroDivisionError(os.environ["RANK"])


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [(die, -9, "ended its process"), (hang, None, "in hang"), (fail, 70, "ZeroDivisionError: 1")],
)
def test_a_rank_that_fails_is_reported_and_replaced(
    fault: object, code: int | None, text: str, tmp_path: Path
) -> None:
    variables = {"TRAINER_TASK": "synthetic", "TRAINER_OUT": str(tmp_path / "failed")}
    with lend(2) as ranks:
        before = [rank.process.pid for rank in ranks]
        ending = carry_out(Case(variables, fault), ranks, timeout=5)[1]  # type: ignore[arg-type]
    assert ending.code == code
    assert text in ending.stderr
    with lend(2) as ranks:
        assert not {rank.process.pid for rank in ranks} & set(before)
        for rank in ranks:
            rank.fit = True
    run_ranks(2, tmp_path / "next", **QUICK)


def test_a_refusal_does_not_cost_the_ranks(tmp_path: Path) -> None:
    run_ranks(2, tmp_path / "one", **QUICK)
    with lend(2) as ranks:
        before = [rank.process.pid for rank in ranks]
        variables = {"TRAINER_MODE": "single", "TRAINER_OUT": str(tmp_path)}
        assert [e.code for e in carry_out(Case(variables), ranks, timeout=60)] == [64, 64]
    with lend(2) as ranks:
        assert [rank.process.pid for rank in ranks] == before
        for rank in ranks:
            rank.fit = True


def test_ranks_that_are_not_asked_for_are_not_started() -> None:
    with lend(0) as ranks:
        assert not ranks


ABANDON = """
import os
import time
import psutil
from tests.pool import carry_out, lend
from tests.pool_rank import Case

def main():
    with lend(2) as ranks:
        carry_out(Case({"TRAINER_TASK": "nonsense"}), ranks, timeout=60)
        pids = [rank.process.pid for rank in ranks]
    until = time.monotonic() + 20  # to be stopped takes a moment
    while (states := {psutil.Process(pid).status() for pid in pids}) != {"stopped"}:
        assert time.monotonic() < until, states
    print(*pids, flush=True)
    os._exit(1)

if __name__ == "__main__":
    main()
"""


def test_ranks_that_wait_do_not_outlive_a_process_of_tests_that_is_killed(tmp_path: Path) -> None:
    program, printed = tmp_path / "abandon.py", tmp_path / "printed"
    program.write_text(ABANDON, encoding="utf-8")
    with printed.open("w") as file:  # not a pipe, because remaining processes would hold it open
        command = [sys.executable, str(program)]
        environment = clean_environment()
        subprocess.run(command, env=environment, stdout=file, stderr=file, check=False)
    pids = printed.read_text(encoding="utf-8").split()
    assert len(pids) == 2, pids
    wait_for(lambda: not any(is_there(int(pid)) for pid in pids), seconds=20)
