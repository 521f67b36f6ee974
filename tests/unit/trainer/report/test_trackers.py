"""A tracker whose package is missing is refused; tests/trackers has the real ones."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK
from trainer.config.exits import Fault
from trainer.config.settings import Settings
from trainer.report.trackers.__main__ import _read
from trainer.report.trackers.process import tracked

MISSING = (
    "TRAINER_TRACKER=wandb: no package wandb is installed; pip install wandb in the job's image"
)

WITHOUT = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is not None, reason="wandb is installed here"
)


def test_a_line_that_is_torn_is_left_out_and_one_that_is_not_over_waits(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"event": "a"}\n{"event": "to\nnoise\n{"event": "b"}\n{"event": ')
    found, offset = _read(file, 0)
    assert [event["event"] for event in found] == ["a", "b"]
    assert _read(file, offset) == ([], offset)
    with file.open("a") as more:
        more.write('"c"}\n')
    assert _read(file, offset) == ([{"event": "c"}], file.stat().st_size)


@WITHOUT
def test_a_folder_that_is_named_as_the_package_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()  # as it makes one for its runs
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Fault, match=MISSING) as refused, tracked(Settings(tracker="wandb")):
        pass
    assert refused.value.code == 64


@WITHOUT
@pytest.mark.slow
def test_a_job_without_the_package_ends_with_64_before_its_first_step(
    start: Any, tmp_path: Path
) -> None:
    more = {"TRAINER_TRACKER": "wandb", "TRAINER_OUT": str(tmp_path), "TRAINER_LOG": "json"}
    ended = start("-m", "trainer.launch", PET_NPROC_PER_NODE="2", **QUICK, **more).end()
    assert ended.code == 64
    assert ended.stderr.count(MISSING) == 1
    assert ended.events == []
