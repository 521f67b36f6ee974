"""Which of several failures is reported as the cause, and what is reported about it."""

import json
import signal
from pathlib import Path

import pytest

from trainer.config.exits import Exit
from trainer.launcher.failures import Failure, explain, read_failure, report_failures


def test_the_earliest_cause_comes_first_with_its_traceback(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    failures = {
        0: Failure(69, "lost a peer", "not shown", 1.0),
        4: Failure(1, "ValueError: late", "not shown", 3.0),
        5: Failure(1, "ValueError: first", "one\ntwo", 2.0),
    }
    assert report_failures(failures) == Exit.CODE
    assert capsys.readouterr().err == "[rank 5] one\n[rank 5] two\n"
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "rank 5: ValueError: first (exit 1)"
    assert sorted(said[1:]) == [
        "rank 0: lost a peer, after rank 5 had failed (exit 69)",
        "rank 4: ValueError: late, after rank 5 had failed (exit 1)",
    ]


def test_ranks_that_were_stopped_are_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    stopped = {0: Failure(143, "stopped", "", 1.0)}
    assert report_failures(stopped) == Exit.STOPPED
    assert caplog.records == []


def record(message: object, file: Path) -> Path:
    """Write an error file like torch's record."""
    file.write_text(json.dumps({"message": message}), encoding="utf-8")
    return file


def test_what_a_rank_has_written_is_read(tmp_path: Path) -> None:
    more = {"py_callstack": "Traceback", "timestamp": "1"}
    file = record({"message": "ValueError: x", "extraInfo": more}, tmp_path / "error")
    found = read_failure(1, file, now=5, own_code=1)
    assert (found.code, found.message, found.traceback) == (1, "ValueError: x", "Traceback")
    ours = {"message": "no such mode", "errorCode": 64, "extraInfo": more}
    assert read_failure(1, record(ours, file), now=5, own_code=1).code == Exit.CONFIG
    own = read_failure(65, file, now=5, own_code=3)
    assert (own.code, own.message) == (65, "no such mode, with its own code 3")


def test_without_a_report_the_last_lines_are_shown(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    failures = {0: Failure(70, "ended", "", 2.0), 1: Failure(70, "ended", "", 1.0)}
    explained = explain(failures, None, late="", last_lines=lambda rank: [f"of {rank}"])
    assert report_failures(explained) == Exit.CODE
    assert capsys.readouterr().err == "[rank 1] of 1\n"
    assert [record.getMessage() for record in caplog.records] == [
        "rank 1 failed first; its last lines:",
        "rank 1: ended (exit 70)",
        "rank 0: ended, after rank 1 had failed (exit 70)",
    ]


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{}", b'{"message": "text"}', b'{"message": {"extraInfo": 1}}'],
)
def test_without_a_report_the_exit_code_tells(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "error"
    file.write_bytes(content)
    assert read_failure(3, file, now=5, own_code=3) == Failure(3, "ended", "", 5)
    killed = read_failure(-signal.SIGKILL, tmp_path / "none", now=5, own_code=-signal.SIGKILL)
    assert killed == Failure(-9, "Signal 9 (SIGKILL)", "", 5)
    # before it had a handler, so without a step to save
    ended = read_failure(-signal.SIGTERM, tmp_path / "none", now=5, own_code=-signal.SIGTERM)
    assert ended.code == Exit.STOPPED


def test_a_message_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    report = {"message": "bad batch\n\tat row 7", "extraInfo": {}}
    file.write_text(json.dumps({"message": report}), encoding="utf-8")
    found = read_failure(70, file, now=5, own_code=1)
    assert found.message == "bad batch at row 7, with its own code 1"
