"""`render.py --check` tries the task on two samples if torch and the task's code are on this machine."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli import command
from k8s.render import try_task
from tests.rendering import job

pytestmark = pytest.mark.slow

CODE = """
import sys, time
from torch import nn
{top}

class Task:
    metric = "accuracy"

    def __init__(self, settings):
        {init}

    def model(self):
        return nn.Linear(2, 2)

    def data(self, *, train):
        from trainer.data.sets import Tensors
        import torch
        return Tensors(torch.rand(9, 2), torch.zeros(9).long())

    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets{none})

    def score(self, outputs, targets):
        return (outputs.argmax(dim=1) == targets).float()
"""


@pytest.fixture(autouse=True)
def nothing_tried_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_task, "_tried", {})


def checked(
    folder: Path, capsys: pytest.CaptureFixture[str], launcher: str = "job", **changes: Any
) -> tuple[int, str]:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job(**changes)))
    code = command.main([str(path), "--check", "--launcher", launcher])
    seen = capsys.readouterr()
    return code, seen.out + seen.err


def own(
    folder: Path, *, none: str = ', reduction="none"', top: str = "", init: str = "pass"
) -> Any:
    (folder / "mine.py").write_text(CODE.format(none=none, top=top, init=init))
    return {"code": {"path": "."}, "trainer": {"task": "mine:Task"}}


def test_a_built_in_task_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = checked(tmp_path, capsys, trainer={"task": "synthetic"})
    assert said == (0, "a-job: ok for job; task synthetic tried on two samples\n")


def test_one_of_the_users_own_is_found_in_the_code_that_travels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = checked(tmp_path, capsys, **own(tmp_path))
    assert said == (0, "a-job: ok for job; task mine:Task tried on two samples\n")


def test_a_file_of_the_users_own_called_trainer_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer.py").write_text("from pathlib import Path\nPath('started').touch()\n")
    monkeypatch.chdir(tmp_path)
    _, said = checked(tmp_path, capsys, trainer={"task": "synthetic"})
    assert said == "a-job: ok for job; task synthetic tried on two samples\n"
    _, said = checked(tmp_path, capsys, **own(tmp_path))
    assert said == "a-job: ok for job; task mine:Task tried on two samples\n"
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"none": ""}, "loss() returned shape () for 2 samples; wanted: (2,)"),
        ({"init": "raise ValueError('oops')"}, "Task(settings) raised ValueError: oops"),
    ],
)
def test_a_wrong_one_is_refused_in_a_line(
    wrong: dict[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = checked(tmp_path, capsys, **own(tmp_path, **wrong))
    assert code == 64
    assert said.startswith(f"render.py: {tmp_path}/job.yaml: trainer.task='mine:Task': {says}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("top", "says"),
    [
        ("import of_the_image", "no module named 'of_the_image' on the Python path"),
        ("open('/none/here')", "the import of mine raised FileNotFoundError"),
    ],
)
def test_what_the_image_has_and_this_machine_has_not_is_no_refusal(
    top: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = checked(tmp_path, capsys, **own(tmp_path, top=top))
    assert code == 0
    assert said.startswith("a-job: ok for job; task mine:Task not tried: ")
    assert says in said


def test_data_that_is_not_here_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = checked(tmp_path, capsys, trainer={"task": "mnist"}, data={"pvc": "images"})
    assert said == (
        0,
        "a-job: ok for job; task mnist not tried: its data, /data, is not on this machine\n",
    )


def test_without_torch_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(try_task, "find_spec", lambda _: None)
    said = checked(tmp_path, capsys)
    assert said == (0, "a-job: ok for job; task digits not tried: torch is not installed here\n")


def test_it_has_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(try_task, "_SECONDS", 1)
    began = time.monotonic()
    code, said = checked(tmp_path, capsys, **own(tmp_path, top="time.sleep(300)"))
    assert (code, said.rpartition(": ")[2]) == (0, "the check did not finish within 1 s\n")
    assert time.monotonic() - began < 60


def test_tasks_of_one_name_in_two_folders_are_both_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name, init in (("good", "pass"), ("bad", "raise ValueError(1)")):
        (tmp_path / name).mkdir()
        values = job(name=name, **own(tmp_path / name, init=init))
        paths.append(str(tmp_path / name / "job.yaml"))
        Path(paths[-1]).write_text(yaml.safe_dump(values))
    assert command.main([*paths, "--each", "--check"]) == 64
    assert "bad/job.yaml: trainer.task='mine:Task'" in capsys.readouterr().err


def test_a_program_and_a_job_of_this_machine_are_not_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(tmp_path, capsys, launcher="local") == (0, "a-job: ok for local\n")
    program = {"command": ["true"]}
    assert checked(tmp_path, capsys, run=program) == (0, "a-job: ok for job\n")
