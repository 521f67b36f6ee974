"""The README is short, and its examples work for a reader who has read nothing else."""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, run_command
from tests.house import pages

README = pages.read(ROOT / "README.md")


def test_it_is_short() -> None:
    assert len(README.split()) <= 1200


def test_the_changes_of_a_release_are_read_in_two_minutes() -> None:
    for release in pages.read(ROOT / "CHANGELOG.md").split("\n## ")[1:]:
        assert len(release.split()) <= 600, release.partition("\n")[0]


def test_the_job_file_shown_is_the_example() -> None:
    (shown,) = pages.fenced(README, "yaml")
    example = pages.read(ROOT / "k8s" / "jobs" / "02-digits-ddp.yaml")
    assert yaml.safe_load(shown) == yaml.safe_load(example)


def test_the_tour_names_files_that_exist_and_begin_with_what_they_are_for() -> None:
    tour = README.partition("## Guided tour")[2].partition("## ")[0]
    files = [ROOT / path for path, _ in pages.links(tour)]
    assert len(files) >= 10
    for file in files:
        text = pages.read(file if file.is_file() else file / "__init__.py")
        assert text.startswith('"""'), file


@pytest.mark.slow
def test_the_task_of_ones_own_trains_on_two_ranks(tmp_path: Path) -> None:
    (code,) = pages.fenced(README, "python")
    assert len(code.splitlines()) <= 30
    (tmp_path / "circles.py").write_text(code, encoding="utf-8")
    (command,) = re.findall(r"^TRAINER_TASK=circles.*", README, re.MULTILINE)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = run_command(
        ["bash", "-c", command], folder=tmp_path, env={"TRAINER_EPOCHS": "5", "PATH": path}
    )
    assert result.returncode == 0, result.stderr
    assert float(re.findall(r'"accuracy": ([0-9.]+)', result.stdout)[-1]) > 0.95
    assert re.findall(r'"world_size": ([0-9]+)', result.stdout)[-1] == "2"
