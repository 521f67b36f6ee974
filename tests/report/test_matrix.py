"""`make run` of a matrix: its jobs one after another, each in its own folder, and one report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_command
from tests.house.test_docs_commands import tree

__all__ = ["tree"]

pytestmark = pytest.mark.slow

# Ends with its CODE and says so; the user's own program, because that starts fast.
CODES = """
name: codes
image: 'python:3.12'
run: {command: [sh, -c, 'echo "ended with $CODE"; exit "$CODE"']}
env: [{name: CODE, value: '0'}]
matrix: {'env[0].value': ['0', '3', '143', '1']}
"""


def make_run(tree: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command(
        ["make", "run", "LAUNCHERS=", *words],
        folder=tree,
        env={"MAKEFLAGS": "", **env},
        timeout=280,
    )


def test_each_job_trains_in_a_folder_of_its_own_and_one_report_compares_them(tree: Path) -> None:
    stale = tree / "build/sweep/runs/sweep-lr9-seed0"  # of another matrix of this name
    stale.mkdir(parents=True)
    (stale / "metrics.jsonl").write_text('{"event": "step", "time": 1.0, "step": 1, "loss": 1.0}\n')
    few = "SET=matrix[trainer.lr]=[0.01] matrix.exclude= trainer.steps=3 trainer.epochs="
    done = make_run(tree, "JOB=k8s/jobs/16-matrix.yaml", few)
    assert done.returncode == 0, done.stderr
    names = ["sweep-lr0-01-seed0", "sweep-lr0-01-seed1"]
    assert [line for line in done.stderr.splitlines() if line.startswith("make: sweep")] == [
        f"make: {name}" for name in names
    ]
    lost = [tree / "build/sweep/runs" / name for name in names]
    assert [(one / "checkpoints/step-00000003").is_dir() for one in lost] == [True, True]
    page = (tree / "build/sweep/report.html").read_text(encoding="utf-8")
    assert all(name in page for name in names)
    assert "sweep-lr9" not in page
    assert "2 runs" in page
    listed = run_command(
        [sys.executable, "-m", "trainer.runs", "build/sweep/runs", "--task", "digits", "--json"],
        folder=tree,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )
    rows = json.loads(listed.stdout)
    assert [(row["run"], row["state"], row["step"]) for row in rows] == [
        (name, "finished", 3) for name in names
    ]


def test_it_goes_on_after_a_failure_until_it_is_stopped(tree: Path) -> None:
    job, out = tree / "codes.yaml", tree / "mine"
    job.write_text(CODES, encoding="utf-8")
    done = make_run(tree, f"JOB={job}", TRAINER_OUT=str(out), TRAINER_REPORT="false")
    assert "Error 70" in done.stderr  # the first that failed; make itself ends with 2
    ended = [line for line in done.stdout.splitlines() if "ended with" in line]
    assert [line.rpartition(" ")[2] for line in ended] == ["0", "3", "143"]
    assert sorted(path.name for path in out.iterdir()) == [
        f"codes-value{code}" for code in ("0", "143", "3")
    ]
    assert not (tree / "build/codes/runs").exists()


def test_compose_takes_one_job(tree: Path) -> None:
    docker = tree / "docker-here"
    docker.mkdir()
    (docker / "docker").write_text("#!/bin/sh\necho --abort-on-container-failure\n")
    (docker / "docker").chmod(0o755)
    done = run_command(
        ["make", "compose-run", "JOB=k8s/jobs/16-matrix.yaml"],
        folder=tree,
        env={"MAKEFLAGS": "", "PATH": f"{docker}:/usr/bin:/bin"},
    )
    assert done.returncode == 2
    assert "JOB=k8s/jobs/16-matrix.yaml: has a matrix, and compose-run takes one job" in done.stderr
    assert not (tree / "build").exists()
