"""A run folder that others can write to: reads are bounded, and writes stay in the folder."""

import json
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bounds import bounded
from trainer import why
from trainer.config.contract import resolve
from trainer.launcher.output.attempt_log import AttemptLog
from trainer.launcher.output.log_file import log_to_file
from trainer.regular import open_to_append
from trainer.report import history
from trainer.report.live.record import Record, to_file
from trainer.report.page import write
from trainer.report.page.charts import draw
from trainer.watch.stacks import write_stacks

LAUNCH = {"event": "launch", "time": 1.0, "task": "digits"}


def failed(*, host: str = "a", **rank: Any) -> dict[str, Any]:
    ranks = [{"rank": 0, "exit": 1, "message": "x", **rank}]
    return {"event": "attempt", "time": 2.0, "action": "failed", "host": host, "ranks": ranks}


def folder_of(folder: Path, *events: dict[str, Any]) -> Path:
    (folder / "logs").mkdir()
    text = "".join(f"{json.dumps(event)}\n" for event in (LAUNCH, *events))
    (folder / "metrics.jsonl").write_text(text)
    return folder


EVENTS = {
    "a long name": failed(host="h" * 5000),
    "no name": failed(host="h\0"),
    "a pattern's square": failed(message="Watchdog rank 1 " * 60_000),
    "another's": failed(message="task a: " * 120_000),
    "a line's": failed(traceback="launch: rank 1: " * 60_000),
    "many lines": failed(traceback="task a: \n" * 110_000),
    "many long lines": failed(last_lines=["task a: " * 100] * 1000),
    "half a character": failed(message="\ud800"),
}


@pytest.mark.parametrize("name", EVENTS)
def test_a_strangers_event_is_read_in_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path, EVENTS[name])
    monkeypatch.setattr("sys.argv", ["why", str(tmp_path)])

    def tell() -> None:
        with (tmp_path / "out").open("w", encoding="utf-8") as out, redirect_stdout(out):
            assert why.main() == 0

    assert bounded(tell) == ""


@pytest.mark.slow
def test_a_report_has_no_half_characters(tmp_path: Path) -> None:
    event = LAUNCH | {"task": "\ud800", "settings": {"a": "\udfff"}}
    write.write([history.read(folder_of(tmp_path, event))], tmp_path / "report.html")
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_report_may_name_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    event = {
        "event": "fault",
        "time": 2.0,
        "kind": "bad_sample",
        "step": 1,
        "file": "caf\udce9.png",
    }
    step = {"event": "step", "time": 3.0, "step": 1, "loss": 1.0}
    write.write([history.read(folder_of(tmp_path, event, step))], tmp_path / "report.html")
    assert "caf?.png" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "shown"), [([-1], 0), ([-100, 0, 1], 1)])
def test_a_report_shows_no_rank_below_0(ranks: list[int], shown: int, tmp_path: Path) -> None:
    usage = {"event": "usage", "ranks": [{"rank": rank, "own_s": 1} for rank in ranks]}
    folder = folder_of(tmp_path, usage | {"time": 2.0}, usage | {"time": 3.0, "step": 1})
    titles = [chart.title for chart in draw([history.read(folder)])]
    assert titles.count("Seconds of own work per step, by rank") == shown


@pytest.mark.slow
def test_a_file_without_end_is_read_from_its_end(tmp_path: Path) -> None:
    folder_of(tmp_path)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.truncate(1 << 40)
    assert bounded(partial(Record, tmp_path), seconds=20) == ""
    assert bounded(partial(history.read, tmp_path), seconds=20).startswith("65: ")
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'\n{"event": "step", "time": 3, "step": 7}\n')
    assert [event["event"] for event in history.events(tmp_path)] == ["step"]


def test_a_terminal_obeys_no_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path, failed(message="\x1b]0;owned\x07"))
    monkeypatch.setattr("sys.argv", ["why", str(tmp_path)])
    assert why.main() == 0
    assert "\x1b" not in capsys.readouterr().out


def write_event(folder: Path) -> None:
    with to_file(folder / "metrics.jsonl") as write_line:
        write_line(LAUNCH)


def write_log(folder: Path) -> None:
    with (folder / "out").open("w", encoding="utf-8") as out:
        os.dup2(out.fileno(), 1)  # a control character of a terminal is not copied
        os.dup2(out.fileno(), 2)
        with log_to_file(folder / "logs"):
            os.write(1, b"a line")


def write_attempt(folder: Path) -> None:
    contract = resolve({"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1"}, devices=lambda: 0)
    AttemptLog(folder, contract).write("ended", exit=0)


WRITERS: dict[str, Callable[[Path], object]] = {
    "metrics.jsonl": write_event,
    "logs/host.log": write_log,
    "logs/host.jsonl": write_attempt,
    "logs/rank-0.stack": lambda folder: write_stacks(folder / "logs/rank-0.stack"),
    "logs/ledger-000001-rank0.jsonl": lambda folder: os.write(
        open_to_append(folder / "logs/ledger-000001-rank0.jsonl"), b"x"
    ),
}


@pytest.mark.parametrize("is_link", [False, True], ids=["pipe", "link"])
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_goes_nowhere_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_link: bool
) -> None:
    run, theirs = tmp_path / "run", tmp_path / "theirs"
    (run / "logs").mkdir(parents=True)
    theirs.write_text("mine")
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    if is_link:
        (run / name).symlink_to(theirs)
    else:
        os.mkfifo(run / name)
    assert not bounded(partial(WRITERS[name], run)).startswith("SIG")
    assert theirs.read_text() == "mine"
