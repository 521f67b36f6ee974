"""The file of MUSTER_EVENTS, whatever a program does to it."""

import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.launcher.output import event_file
from trainer.launcher.output.event_file import EventFile
from trainer.report.live.figures import Figures
from trainer.report.live.record import Record, as_line

STEP = {"step": 3, "loss": 0.5}
READ = {"event": "step", **STEP}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def append(path: Path, *lines: bytes | str | dict[str, Any]) -> None:
    with path.open("ab") as file:
        for line in lines:
            text = json.dumps(line) if isinstance(line, dict) else line
            file.write(text.encode() if isinstance(text, str) else text)
            file.write(b"\n" if isinstance(line, dict) else b"")


# What is written, and what is read of it at the end.
LINES: list[tuple[bytes, list[dict[str, Any]], str]] = [
    (b'{"step": 3, "loss": 0.5}\n', [READ], ""),
    (b'{"step": 3, "loss": 0.5}', [READ], ""),  # its end is missing
    (b'{"event": "eval", "step": 3, "f1": 1}\n', [{"event": "eval", "step": 3, "f1": 1}], ""),
    (b'{"step": 3, "loss": "low", "seconds": "1"}\n', [{"event": "step", "step": 3}], ""),
    (b'{"step": 3, "loss": NaN, "lr": Infinity}\n', [{"event": "step", "step": 3}], ""),
    (b'{"step": 3, "time": "now"}\n', [{"event": "step", "step": 3}], ""),
    (b'\n  \n{"step": 3}\r\n', [{"event": "step", "step": 3}], ""),
    (b'{"step": 3, "lo\n{"step": 4}\n', [{"event": "step", "step": 4}], "left out"),
    (b'{"loss": 3}\n', [], "must have its step"),
    (b'{"step": 1' + b"0" * 400 + b"}\n", [], "must have its step"),
    (b"[3]\n", [], "no JSON object"),
    (b'{"event": ["step"], "step": 3}\n', [], "event must be one of step, eval"),
    (
        b'{"event": "attempt", "action": "ended", "exit": 0}\n',
        [],
        "event must be one of step, eval",
    ),
    (b'{"step": 3, "more": [NaN]}\n', [], "not JSON compliant"),
    (b'{"step": 3, "more": ' + b"[" * 60_000 + b"\n", [], "left out"),
    (b"\xff\xfe\x00\n", [], "left out"),
    (b"x" * 70_000 + b'\n{"step": 4}\n', [{"event": "step", "step": 4}], "longer than 65536"),
    (b"x" * 3_000_000 + b'\n{"step": 4}\n', [{"event": "step", "step": 4}], "longer than 65536"),
]


@pytest.mark.parametrize(("written", "found", "message"), LINES, ids=range(len(LINES)))
def test_what_a_line_is_read_as(
    written: bytes, found: Any, message: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = EventFile(path)
    append(path, written)
    assert list(file.read(to_end=True)) == found
    file.close()
    assert message in caplog.text
    assert len(caplog.messages) == bool(message)
    assert all(len(text) < 400 for text in caplog.messages)


def test_a_torn_line_is_read_when_it_is_whole(path: Path) -> None:
    file = EventFile(path)
    append(path, '{"step": 3, ')
    assert list(file.read()) == []
    append(path, '"loss": 0.5}\n{"step"')
    assert list(file.read()) == [READ]
    append(path, ": 4}\n")
    assert list(file.read()) == [{"event": "step", "step": 4}]


def replaced(path: Path) -> None:
    path.unlink()
    append(path, STEP)


def cut_off(path: Path) -> None:
    path.write_text("")
    append(path, STEP)


def renamed(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    append(path, STEP)


@pytest.mark.parametrize("change", [replaced, cut_off, renamed])
def test_a_file_that_was_changed_is_read_on(change: Callable[[Path], None], path: Path) -> None:
    file = EventFile(path)
    append(path, {"step": 1, "note": "x" * 100})
    assert [event["step"] for event in file.read()] == [1]
    change(path)
    assert [event for _ in range(2) for event in file.read()] == [READ]


def linked(path: Path) -> None:
    path.symlink_to("/dev/zero")


def piped(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("change", [linked, piped, Path.mkdir, lambda _: None])
def test_what_is_no_file_has_no_events_and_holds_nobody_up(
    change: Callable[[Path], object], path: Path
) -> None:
    file = EventFile(path)
    append(path, STEP)
    assert list(file.read()) == [READ]
    path.unlink()
    change(path)
    read = threading.Thread(target=lambda: [list(file.read(to_end=True)) for _ in range(3)])
    read.start()
    read.join(5)
    assert not read.is_alive()


def test_of_much_a_part_is_read_in_a_turn_and_the_count_of_what_was_left_out_is_said(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = EventFile(path)
    append(path, b'{"step": 3}\n' * 50_000, b"x\n" * 5)
    first = sum(1 for _ in file.read())
    assert 20_000 < first < 22_000
    assert first + sum(1 for _ in file.read(to_end=True)) == 50_000
    file.close()
    assert caplog.messages[1:] == ["MUSTER_EVENTS: 5 lines in all were left out"]


def test_the_end_is_waited_for_some_seconds_only(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_file, "_TIMEOUT", 0.0)
    file = EventFile(path)
    append(path, b'{"step": 3}\n' * 50_000)
    assert 20_000 < sum(1 for _ in file.read(to_end=True)) < 22_000
    assert caplog.messages == ["MUSTER_EVENTS: too many events; the last ones are left out"]


@given(st.lists(st.binary(max_size=40) | st.sampled_from([line for line, _, _ in LINES[:14]])))
def test_anything_may_stand_there(parts: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        record, figures = Record(None), Figures(path)
        file = EventFile(path)
        for part in parts:
            append(path, part)
            for event in file.read():
                assert as_line(event).startswith('{"event": "')
                figures.take(record.complete({"time": 1.0, **event}))
        for event in file.read(to_end=True):
            assert json.loads(as_line(event)) == event
        file.close()
