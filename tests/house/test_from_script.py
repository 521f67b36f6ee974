"""The diff of trainer/FROM_SCRIPT.md: the script before it and the task after it train equally."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.house import pages

PAGE = ROOT / "trainer/FROM_SCRIPT.md"


def side(mark: str) -> str:
    """Return the file before the diff (-) or after it (+)."""
    (diff,) = pages.fenced(pages.read(PAGE), "diff")
    lines = diff.splitlines()
    assert all(line[:1] in (" ", "-", "+") for line in lines)
    return "".join(f"{line[1:]}\n" for line in lines if line[0] in (" ", mark))


@pytest.mark.slow
def test_the_script_and_the_task_learn_the_same(start: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(side("-"), encoding="utf-8")
    (tmp_path / "rings.py").write_text(side("+"), encoding="utf-8")
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    script = start(str(tmp_path / "script.py"), **path)
    check = start("-m", "trainer.check", "rings:Rings", **path)
    for started in (script, check):
        assert started.process.wait(120) == 0, started.read(started.stderr)
    before = re.findall(r"accuracy (\S+)", script.read(script.out))
    losses = []
    for line in re.findall(r"^ *(TRAINER_TASK=rings:Rings .*)$", pages.read(PAGE), re.MULTILINE):
        variables, command = line.split(" python ")
        settings = dict(one.split("=") for one in variables.split())
        # Of a run in a folder that has one already, only the last evaluation would be repeated.
        settings["TRAINER_OUT"] = str(tmp_path / settings.get("TRAINER_OUT", "runs/rings.Rings"))
        ended = start(*command.split(), TRAINER_LOG="json", **path, **settings).end()
        assert ended.code == 0, ended.stderr
        assert ended.of("step"), "it only resumed the run before"
        last = ended.of("eval")[-1]
        assert last["accuracy"] == pytest.approx(float(before[-1]), abs=0.02)
        losses.append(last["loss"])
    assert len(losses) == 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_the_task_is_shorter() -> None:
    assert len(side("+").splitlines()) < len(side("-").splitlines())
