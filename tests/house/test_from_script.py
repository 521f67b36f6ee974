"""The diff of trainer/FROM_SCRIPT.md: the script before it and the task after it learn the same."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environment
from tests.house import pages

PAGE = ROOT / "trainer/FROM_SCRIPT.md"


def side(mark: str) -> str:
    """Return the file before the diff (-) or after it (+)."""
    (diff,) = pages.fenced(pages.read(PAGE), "diff")
    lines = diff.splitlines()
    assert all(line[:1] in (" ", "-", "+") for line in lines)
    return "".join(f"{line[1:]}\n" for line in lines if line[0] in (" ", mark))


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(**variables) | {"PYTHONPATH": f"{ROOT}:{folder}"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_script_and_the_task_learn_the_same(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(side("-"), encoding="utf-8")
    before = re.findall(r"accuracy (\S+)", run(tmp_path, "script.py").stdout)
    (tmp_path / "rings.py").write_text(side("+"), encoding="utf-8")
    run(tmp_path, "-m", "trainer.check", "rings:Rings")
    settings = {"TRAINER_TASK": "rings:Rings", "TRAINER_LR": "0.1", "TRAINER_EPOCHS": "3"}
    losses = []
    for ranks in (1, 2):
        more = {"PET_NPROC_PER_NODE": str(ranks), "TRAINER_OUT": str(tmp_path / f"run{ranks}")}
        done = run(tmp_path, "-m", "trainer.launch", **settings, **more, TRAINER_LOG="json")
        events = [json.loads(line) for line in done.stdout.splitlines() if line[0] == "{"]
        *_, last = [event for event in events if event["event"] == "eval"]
        assert last["accuracy"] == pytest.approx(float(before[-1]), abs=0.02)
        losses.append(last["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_the_task_is_shorter() -> None:
    assert len(side("+").splitlines()) < len(side("-").splitlines())
