"""The recipe for a task in trainer/README.md: one file, inside or outside the trainer, adds a task."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.house import pages

pytestmark = pytest.mark.slow

((_, TASK),) = pages.recipe("trainer/README.md", "Add a task")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "trainer")
COMMON = {"TRAINER_MODE": "ddp", "TRAINER_LOG": "json", "TRAINER_PREFLIGHT": "off"}


def test_a_file_outside_is_a_task(start: Any, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/larger.py").write_text(TASK)
    path = f"{ROOT}:{tmp_path}"  # in an image or a job file: the folder with your code
    settings = COMMON | {"TRAINER_TASK": "ours.larger:Task", "TRAINER_LR": "0.5"}
    ended = start(*TORCHRUN, PYTHONPATH=path, **settings).end()
    assert ended.code == 0, ended.stderr
    assert ended.of("launch")[0]["world_size"] == 2
    assert ended.of("summary")[0]["accuracy"] > 0.9


def test_a_file_in_the_tasks_folder_is_a_built_in_task(start: Any, tmp_path: Path) -> None:
    copied = shutil.copytree(ROOT / "trainer", tmp_path / "copy/trainer")
    (copied / "tasks/larger.py").write_text(TASK)
    ended = start(*TORCHRUN, PYTHONPATH=str(copied.parent), TRAINER_TASK="larger", **COMMON).end()
    assert ended.code == 0, ended.stderr
    assert ended.of("summary")[0]["steps"] == 3 * 320 // 32  # its DEFAULTS, in batches of 32
    assert ended.of("summary")[0]["accuracy"] > 0.9
