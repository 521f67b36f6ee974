"""`python -m trainer.health`: 0 while all processes make progress, else 1 with the one that does not."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, run_command
from trainer import health
from trainer.config.exits import Exit, Fault


def run_check(folder: Path | str, *options: str) -> subprocess.CompletedProcess[str]:
    return run_command(
        [sys.executable, *options, "-m", "trainer.health"], env={"TRAINER_HEALTH": str(folder)}
    )


def test_it_needs_neither_torch_nor_pydantic(tmp_path: Path) -> None:
    health.sign(tmp_path, health.LAUNCHER, limit=60)
    done = run_check(tmp_path, "-X", "importtime")
    assert done.returncode == 0
    assert not any(name in done.stderr for name in ("| torch", "| pydantic", "| trainer.settings"))


def test_the_oldest_file_past_its_limit_is_named(tmp_path: Path) -> None:
    for name, limit in ((health.LAUNCHER, 60.0), ("rank-0", 0.02), ("rank-1", 0.01), ("rank-2", 0)):
        health.sign(tmp_path, name, limit=limit)
        time.sleep(0.03)
    assert (problem := health.judge(tmp_path)) is not None
    assert problem.startswith("rank 0: no step, evaluated batch or checkpoint for 0 s (limit 0 s, ")
    health.forget(tmp_path)
    assert health.judge(tmp_path) == f"no liveness file in {tmp_path}"


def test_help_is_shown_and_an_argument_is_refused() -> None:
    for option, code in {"--help": 0, "run": 64}.items():
        command = [sys.executable, "-m", "trainer.health", option]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (ended.returncode, "TRAINER_HEALTH is not set" in ended.stdout) == (code, code == 0)


def test_no_file_is_a_problem_unless_trainer_health_is_not_set(tmp_path: Path) -> None:
    done = run_check(tmp_path / "none")
    assert done.returncode == 1
    assert done.stdout == f"health: no liveness file in {tmp_path / 'none'}\n"
    assert run_check("").returncode == 0


def test_a_file_is_written_once_a_second_at_most_and_in_place(tmp_path: Path) -> None:
    renew = health.sign(tmp_path, "rank-0", limit=60)
    renew()
    before = (tmp_path / "rank-0").stat()
    for _ in range(100):
        renew()
    after = (tmp_path / "rank-0").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_a_file_that_cannot_be_read_is_an_old_one(tmp_path: Path) -> None:
    (tmp_path / "rank-0").write_text("{")
    assert (problem := health.judge(tmp_path)) is not None
    assert problem.startswith("rank 0: ")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Fault, match="set TRAINER_HEALTH to a folder") as caught:
        health.sign(tmp_path / "file", "rank-0", limit=60)
    assert caught.value.code == Exit.MACHINE


@pytest.mark.slow
def test_a_stopped_rank_is_named_and_healthy_again_when_it_goes_on(
    start: Any, tmp_path: Path
) -> None:
    waits = dict.fromkeys(("RENDEZVOUS", "COLLECTIVE", "CHECKPOINT"), "2")
    folder = tmp_path / "health"
    running = start(
        "-m",
        "trainer.launch",
        **(QUICK | {"TRAINER_STEPS": "1000000", "TRAINER_EVAL_STEPS": "500"}),
        **{f"TRAINER_{name}_TIMEOUT": value for name, value in waits.items()},
        TRAINER_OUT=str(tmp_path / "run"),
        TRAINER_HEALTH=str(folder),
        TRAINER_HEALTH_TIMEOUT="3",
    )
    running.wait_for('"step": 5,')
    time.sleep(3.5)  # more than the limit: only renewed files are fresh
    assert run_check(folder).returncode == 0
    (rank,) = running.ranks()
    rank.send_signal(signal.SIGSTOP)
    time.sleep(4.5)
    done = run_check(folder)
    assert done.returncode == 1
    assert done.stdout.startswith("health: rank 0: no step, evaluated batch or checkpoint for ")
    rank.send_signal(signal.SIGCONT)
    time.sleep(1)
    assert run_check(folder).returncode == 0
    running.process.send_signal(signal.SIGTERM)
    assert running.end().code == Exit.STOPPED
