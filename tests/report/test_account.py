"""A run's account of its time, compared with that of an adversary that disturbs it.

It kills all processes, stops a rank, slows a rank, and slows the disk. MUSTER_TEST_ACCOUNT=whole does
so for ten minutes:

    MUSTER_TEST_ACCOUNT=whole python -m pytest tests/report/test_account.py -s
"""

import json
import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT
from trainer.report.history import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DOWN = 3.0  # seconds until the next attempt
STOPPED = 4.0  # seconds that a rank is stopped
WAIT = 0.25  # seconds between two notes: the training waits for the disk, or for a rank


@dataclass(frozen=True)
class Attempt:
    """An attempt: what is slow in it, after which steps a rank is stopped and all are killed."""

    slow: str = ""
    stopped_after: int | None = None
    killed_after: int | None = None


# After a rank was slow or stopped, ten seconds and more pass until the kill: so often waits are known.
SHORT = (
    Attempt(killed_after=25),
    Attempt(slow="rank", stopped_after=65, killed_after=138),
    Attempt(slow="disk"),
)
WHOLE = (
    Attempt(killed_after=55),
    *(
        one
        for round_ in range(4)
        for one in (
            Attempt("rank", 150 + 300 * round_, 210 + 300 * round_),
            Attempt("disk", killed_after=275 + 300 * round_),
        )
    ),
    Attempt(stopped_after=1300),
)


def attempts(start: Any, run: Path, notes: Path, plan: tuple[Attempt, ...], *, steps: int) -> Any:
    """Run as planned to the end; return the seconds by cause, measured from outside."""
    settings = {
        "PET_NPROC_PER_NODE": "2",
        "TRAINER_TASK": "tests.report.timed:Task",
        "TRAINER_MODE": "ddp",
        "TRAINER_OUT": str(run),
        "TRAINER_STEPS": str(steps),
        "TRAINER_LOG_STEPS": "1",
        "TRAINER_CHECKPOINT_STEPS": "10",
        "TRAINER_EVAL_STEPS": "70",
        "TRAINER_LOG": "json",
        "TIMED": str(notes),
        "PYTHONPATH": str(ROOT),
    }
    own: dict[str, float] = defaultdict(float)
    last_end = 0.0
    furthest = 0
    for attempt in plan:
        step = max((int(one.name[5:]) for one in run.glob("checkpoints/step-*")), default=0)
        before = len(notes.read_text().splitlines()) if notes.exists() else 0
        created = time.time()  # psutil's has whole seconds of the machine's start in it
        process = start("-m", "trainer.launch", **settings, TIMED_SLOW=attempt.slow)
        own["down"] += created - last_end if last_end else 0.0
        if attempt.stopped_after:
            process.wait_for(f'"step": {attempt.stopped_after},')
            own["stragglers"] += stop(process.ranks()[1])
        if attempt.killed_after:
            process.wait_for(f'"step": {attempt.killed_after},')
            for one in process.family():
                one.kill()
            process.process.wait()
        else:
            ended = process.end(timeout=600)
            assert ended.code == 0, ended.stderr
        last_end = time.time()
        noted = [json.loads(line) for line in notes.read_text().splitlines()[before:]]
        own["stragglers"] += sum(
            one["ended"] - one["began"] for one in noted if one["kind"] == "stragglers"
        )
        of_main = [one for one in noted if one["kind"] != "stragglers"]
        first = next(i for i, one in enumerate(of_main) if one["kind"] == "training")
        # The samples of the first step come right before it; two were read to try the task.
        began = [one["began"] for one in of_main[:first] if one["kind"] == "data"][-16]
        own["start"] += began - created
        own["end"] += last_end - of_main[-1]["ended"] if not attempt.killed_after else 0.0
        of_main = [one for one in of_main if one["began"] >= began]
        furthest = mark_repeated(of_main, step, furthest)
        for one in of_main:
            own[one["kind"]] += one["ended"] - one["began"]
        for one, after in pairwise(of_main):
            # What follows a note belongs to it, such as a step's own work; but for what it waits.
            waited = after["began"] - one["ended"]
            if waited < WAIT:
                own[one["kind"]] += waited
            elif attempt.slow == "disk":
                own["checkpoint"] += waited
        if attempt.killed_after:
            time.sleep(DOWN)
    return dict(own)


def mark_repeated(notes: list[dict[str, Any]], step: int, furthest: int) -> int:
    """Mark an attempt's steps after `step` that an earlier one has done; return the furthest step."""
    for one in notes:
        if one["kind"] == "training":
            step += 1
            one["kind"] = "training" if step > furthest else "repeated"
    return max(furthest, step)


def stop(rank: psutil.Process) -> float:
    """Stop a rank for a while; return the seconds."""
    began = time.monotonic()
    rank.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED)
    rank.send_signal(signal.SIGCONT)
    return time.monotonic() - began


def test_each_cause_is_within_two_percent_of_what_an_adversary_knows(
    start: Any, tmp_path: Path
) -> None:
    whole = os.environ.get("MUSTER_TEST_ACCOUNT") == "whole"
    began = time.time()
    run, notes = tmp_path / "run", tmp_path / "notes"
    plan, steps = (WHOLE, 1350) if whole else (SHORT, 165)
    own = attempts(start, run, notes, plan, steps=steps)
    wall = time.time() - began
    account = read(run).account
    assert account.wall == pytest.approx(wall, rel=0.02)
    spent = account.by_cause()
    for cause in sorted(own.keys() | spent.keys()):
        seen, known = spent.get(cause, 0.0), own.get(cause, 0.0)
        print(f"{cause:12} {known:7.2f} s, account {seen:7.2f} s, {(seen - known) / wall:+.2%}")
    assert sum(spent.values()) == pytest.approx(account.wall, rel=0.01)
    for cause in own.keys() | spent.keys():
        assert abs(own.get(cause, 0) - spent.get(cause, 0)) < 0.02 * wall, (cause, own, spent)
