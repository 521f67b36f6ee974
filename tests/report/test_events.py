"""The events of real runs agree with the documented schema, and reports and accounts with the events."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, ROOT, run_command
from tests.house.test_docs_commands import tree
from tests.ranks import run_ranks
from trainer.report.events import FIELDS
from trainer.report.history import events, read

__all__ = ["tree"]

pytestmark = pytest.mark.slow

TASKS = "tests.faults.tasks:"


def documented(kind: str) -> set[str]:
    """Return the fields of an event; METRIC stands for the task's scores, ... for any."""
    return {name for names in FIELDS[kind] for name in names.split(", ")} | {"event", "time"}


def unknown(found: list[dict[str, Any]], *, scores: set[str]) -> set[str]:
    """Return the fields of events that no page has, each with its event."""
    return {
        f"{event['event']}.{name}"
        for event in found
        for name in event.keys() - documented(event["event"]) - scores
        if "..." not in documented(event["event"])
    }


def test_a_run_writes_the_fields_that_the_page_has(tmp_path: Path) -> None:
    long = {"task": "digits", "epochs": "3", "checkpoint_steps": "20", "eval_steps": "30"}
    found = run_ranks(2, tmp_path, **long)
    assert unknown(found, scores={"accuracy"}) == set()
    kinds = {event["event"] for event in found}
    assert {"launch", "step", "eval", "checkpoint", "summary"} <= kinds
    launch = found[0]
    assert launch["python"] == platform.python_version()
    if (ROOT / ".git").exists():
        assert re.fullmatch("[0-9a-f]{40}(-dirty)?", launch["code_commit"])
    # Figures that a data parallel run on a CPU does not have.
    absent = {"stages", "schedule", "devices", "code_sha256", "preflight", "message", "METRIC"}
    absent |= {"program", "command"}
    absent |= {"tokens_per_s", "peak_share"}
    for kind in kinds - {"fault", "usage"}:
        written = {name for event in found if event["event"] == kind for name in event}
        assert documented(kind) - absent <= written, kind


def test_a_killed_rank_leaves_two_attempts_whose_time_is_all_accounted_for(
    start: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = {
        "TRAINER_OUT": str(run),
        "TRAINER_STEPS": "60",
        "TRAINER_CHECKPOINT_STEPS": "10",
        "TRAINER_TASK": f"{TASKS}Slow",
        "SLOW": "50",
        "PET_NPROC_PER_NODE": "2",
        "PET_MAX_RESTARTS": "1",
        "PYTHONPATH": str(ROOT),
    }
    started = start("-m", "trainer.launch", **(QUICK | settings))
    started.wait_for('"step": 25,')
    started.ranks()[1].kill()
    assert started.end().code == 0
    found = list(events(run))
    assert unknown(found, scores={"accuracy", "mse"}) == set()
    history = read(run)
    first, second = history.attempts
    assert (first.exit, second.exit) == (70, 0)
    assert first.failures[0]["rank"] == 1
    account = history.account
    assert sum(account.by_cause().values()) == pytest.approx(account.wall, rel=0.01)
    # 60 new steps of at least 50 ms, and again those since the checkpoint of step 20
    steps = [event for event in found if event["event"] == "step"]
    training = account.spent["training"] + account.spent["stragglers"]
    assert training > 60 * 0.05 * 0.9
    assert account.spent["repeated"] > 0.1
    spent = training + account.spent["repeated"]
    assert spent == pytest.approx(sum(one["seconds"] - one["data_s"] for one in steps), rel=0.2)
    summary = next(event for event in found if event["event"] == "summary")
    assert summary["goodput"] == pytest.approx(account.goodput, abs=0.1)


def report(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command([sys.executable, "-m", "trainer.report", *arguments], timeout=120)


def test_the_command_writes_a_report_and_refuses_in_one_line(tmp_path: Path) -> None:
    run_ranks(1, tmp_path / "run", task="synthetic", steps="5")
    done = report(str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(tmp_path / "run/report.html")
    assert (tmp_path / "run/report.html").stat().st_size < 1_500_000

    none = report(str(tmp_path))
    assert (none.returncode, none.stdout) == (65, "")
    assert none.stderr.splitlines() == [
        f"report: {tmp_path}: no event in metrics.jsonl or logs/; is it a run's TRAINER_OUT? (exit 65)"
    ]
    # No file can be made there; below a file, as on a read-only volume, none can be removed either.
    for folder in ("/proc", str(tmp_path / "run/metrics.jsonl")):
        nowhere = report(str(tmp_path / "run"), "-o", f"{folder}/report.html")
        assert nowhere.returncode == 71
        assert "choose another file with -o (exit 71)" in nowhere.stderr
        assert len(nowhere.stderr.splitlines()) == 1


def test_make_run_writes_one_and_says_where_unless_it_is_not_wanted(tree: Path) -> None:
    for wanted, env in ((False, {"TRAINER_REPORT": "false"}), (True, {})):
        done = run_command(
            ["make", "run", "SET=trainer.steps=5", "FRESH=1"],
            folder=tree,
            env={"MAKEFLAGS": "", **env},
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        page = tree / "build/digits-ddp/report.html"
        assert page.exists() is wanted
        assert ("build/digits-ddp/report.html" in done.stdout + done.stderr) is wanted


def test_without_its_packages_the_command_says_which(tmp_path: Path) -> None:
    (tmp_path / "altair.py").write_text("raise ModuleNotFoundError('x', name='altair')")
    (tmp_path / "run").mkdir()
    event = {"event": "step", "time": 1.0, "step": 1, "loss": 1.0}
    (tmp_path / "run/metrics.jsonl").write_text(json.dumps(event) + "\n")
    command = [sys.executable, "-m", "trainer.report", str(tmp_path / "run")]
    done = run_command(command, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert done.returncode == 71
    assert (
        "no package altair; install it with pip install 'muster[report]' (exit 71)" in done.stderr
    )
