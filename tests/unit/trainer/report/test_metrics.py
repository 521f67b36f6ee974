"""`reporting`: the last event is the end, even if the watchdog's thread reports later; NaN is null."""

import os
from pathlib import Path

import pytest

from tests.checkpoint.small import ALONE
from trainer.config.settings import Settings
from trainer.report.history import events
from trainer.report.metrics import reporting


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (["summary"], ["summary"]),
        (["error"], ["error"]),
        (["summary", "error"], ["summary", "error"]),
        (["summary", "fault"], ["summary"]),
        (["error", "fault", "error"], ["error", "fault", "error"]),
    ],
)
def test_after_the_end_only_an_error_and_its_cause_are_reported(
    tmp_path: Path, ending: list[str], said: list[str]
) -> None:
    settings = Settings(out=str(tmp_path), log="json")
    with reporting(settings, ALONE) as report:
        report("usage", step=1, ranks=[])
        for event in ending:
            report(event, code=71, message="the disk is full", steps=2)
            report("usage", step=2, ranks=[])
    reported = [event["event"] for event in events(tmp_path)]
    assert reported == ["usage", *said]


def test_what_is_not_finite_is_null_wherever_it_is(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    with reporting(Settings(out=str(tmp_path), log="json"), ALONE) as report:
        report("sample", step=1, best=inf, guesses=[0.5, nan], by_class={"cat": (nan, 1)})
    (event,) = events(tmp_path)
    assert (event["best"], event["guesses"]) == (None, [0.5, None])
    assert event["by_class"] == {"cat": [None, 1]}


@pytest.mark.parametrize("cause", ["no reader", "full disk"])
def test_standard_output_that_fails_ends_no_run(
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    read, write = os.pipe()
    os.close(read)  # as `| head` does
    with os.fdopen(write, "w") as closed, Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full if cause == "full disk" else closed)
        with reporting(Settings(out=str(tmp_path), log="json"), ALONE) as report:
            report("usage", step=1, ranks=[])
            report("usage", step=2, ranks=[])
        monkeypatch.undo()
    assert [event["step"] for event in events(tmp_path)] == [1, 2]
    assert caplog.text.count("standard output: ") == 1


@pytest.mark.parametrize("text", ["runs/exp[lr=0.1]", "runs/a[/b]", "probe:x:net"])
def test_a_terminal_shows_a_text_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    with reporting(Settings(out=str(tmp_path), log="rich"), ALONE) as report:
        report("launch", out=text)
        report("eval", step=1, loss=1.0, metric=text, **{text: 0.5})
        report("step", step=1, steps=2, loss=1.0, samples_per_s=3.0)
        report("summary", steps=2, checkpoint=text)
    assert capsys.readouterr().out.count(text) == 3


def test_a_terminal_shows_small_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(Settings(out=str(tmp_path), log="rich"), ALONE) as report:
        report("launch", lr=2e-5)
        report("eval", step=1, loss=1.0, metric="error", error=3e-7)
        report("step", step=1, steps=2, loss=4e-10, samples_per_s=0.25)
        report("summary", steps=2, error=5e-10)
    shown = capsys.readouterr().out.split()
    assert [
        text for text in ("2e-05", "3e-07", "4e-10", "5e-10", "0.25") if text not in shown
    ] == []
