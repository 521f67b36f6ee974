"""`python -m trainer.runs`: which folders are runs, what is shown for each, and the filters."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.report.test_history import event, write
from trainer.runs import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs at different depths, and one without an end."""
    for name, task, steps in (("a", "digits", 4), ("deep/b", "text", 2), ("c", "digits", None)):
        run = tmp_path / name
        run.mkdir(parents=True)
        launch = event("launch", 1, task=task, mode="ddp", began=0.0)
        taken = event("step", 3, step=steps or 1, steps=4, seconds=2.0)
        scored = event("eval", 4, step=4, metric="accuracy", accuracy=0.5, seconds=1.0)
        ended = event("summary", 5, steps=steps, accuracy=0.5)
        write(run, launch, taken, scored, *([ended] if steps else []))
    (tmp_path / "a/checkpoints").mkdir()
    (tmp_path / "a/around").symlink_to(tmp_path)
    return tmp_path


def listed(
    folder: Path, *options: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    monkeypatch.setattr("sys.argv", ["runs", str(folder), "--json", *options])
    assert main() == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_every_run_has_a_row_and_filters_leave_some(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(*options: str) -> list[str]:
        found = listed(folder, *options, capsys=capsys, monkeypatch=monkeypatch)
        return [row["run"] for row in found]

    assert names() == ["a", "c", "deep/b"]
    assert names("--task", "digits") == ["a", "c"]
    assert names("--state", "finished") == ["a", "deep/b"]
    assert names("--state", "open", "--mode", "ddp") == ["c"]
    assert names("--mode", "fsdp") == []
    (row,) = listed(folder / "a", capsys=capsys, monkeypatch=monkeypatch)
    assert (row["run"], row["result"], row["step"], row["attempts"]) == ("a", 0.5, 4, 1)
    assert (row["seconds"], row["goodput"]) == (5.0, pytest.approx(0.4))


def test_a_table_for_people_and_a_refusal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["runs", str(folder)])
    assert main() == 0
    out = capsys.readouterr().out
    assert "accuracy 0.5" in out
    assert "40.0%" in out
    (folder / "empty").mkdir()
    monkeypatch.setattr("sys.argv", ["runs", str(folder / "empty")])
    assert main() == 65


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_a_reader_who_has_gone_is_no_error(
    folder: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)  # as `| head` does
    with os.fdopen(write, "w") as closed, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", closed)
        patch.setattr("sys.argv", ["runs", str(folder), *options])
        assert main() == 0


def test_a_folder_that_cannot_be_read_hides_no_other(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (folder / "a/metrics.jsonl").write_text("")
    read, refused = Path.iterdir, folder / "lost+found"
    refused.mkdir()

    def iterdir(path: Path) -> Any:  # root may read everything
        if path == refused:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    rows = listed(folder, capsys=capsys, monkeypatch=monkeypatch)
    assert [row["run"] for row in rows] == ["c", "deep/b"]
    said = caplog.text
    assert f"left out: {folder / 'a'}: no event in" in said
    assert "lost+found" in said
