"""What a report reads from a run folder: attempts, curves, hostile lines."""

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.exits import MEANINGS, Exit, Fault
from trainer.report.history import Curve, History, read, read_all
from trainer.report.live.record import Record
from trainer.report.verdict import duration, verdict
from trainer.why import why


def event(name: str, time: float, /, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": time, **fields}


def attempt(
    action: str, time: float, host: str = "a", *, node: int | None = 0, **fields: Any
) -> Any:
    return event("attempt", time, action=action, host=host, node=node, **fields)


def write(
    folder: Path, *events: dict[str, Any], launchers: dict[str, list[Any]] | None = None
) -> Path:
    """Write a run folder: rank 0's events, and the launchers' by host."""
    (folder / "logs").mkdir(exist_ok=True)
    lines = "".join(json.dumps(one) + "\n" for one in events)
    (folder / "metrics.jsonl").write_text(lines)
    for host, ones in (launchers or {}).items():
        text = "".join(json.dumps(one) + "\n" for one in ones)
        (folder / "logs" / f"{host}.jsonl").write_text(text)
    return folder


def endings(run: History) -> list[tuple[int | None, int | None]]:
    return [(one.exit, one.last_step) for one in run.attempts]


KILLED = {"rank": 3, "exit": -9, "message": "Signal 9 (SIGKILL)", "time": 9.0, "traceback": ""}
ENDINGS: dict[str, tuple[list[dict[str, Any]], list[Any], list[tuple[Any, Any]], str]] = {
    "one process that finished": (
        [
            event("launch", 2, began=0),
            event("step", 3, step=5, steps=5, seconds=1),
            event("eval", 4, step=5, metric="accuracy", accuracy=0.9),
            event("summary", 5, steps=5, accuracy=0.9),
        ],
        [],
        [(0, 5)],
        "finished: accuracy 0.9, 5 steps in 5 s",
    ),
    "one that still runs, or was killed": (
        [event("launch", 2, began=0), event("step", 3, step=4, steps=9, seconds=1)],
        [],
        [(None, 4)],
        "open: no end is recorded: it still runs, or was killed; step 4 of 9 in 3 s",
    ),
    "a fault of rank 0, then a second start that went to the end": (
        [
            event("launch", 2, began=0),
            event("step", 3, step=4, seconds=1),
            event("error", 4, code=65, message="sample 7 cannot be read"),
            event("launch", 12, began=10),
            event("step", 13, step=5, seconds=1),
            event("summary", 14, steps=5),
        ],
        [],
        [(65, 4), (0, 5)],
        "finished: 5 steps in 14 s (2 attempts)",
    ),
    "killed before its first event, then stopped": (
        [
            event("launch", 22, began=21),
            event("step", 23, step=5, steps=9, seconds=1),
            event("fault", 24, kind="stopped", signal="SIGTERM", step=7),
        ],
        [
            attempt("launched", 1, began=0),
            attempt("started", 2, first_rank=0),
            attempt("launched", 20, host="b", began=20),
            attempt("started", 21, host="b", first_rank=0),
            attempt("ended", 25, host="b", exit=143),
        ],
        [(None, None), (143, 7)],
        "stopped: stopped by a signal at step 7 of 9; start it again to continue",
    ),
    "a rank killed on another node: the cause is there, not on rank 0's": (
        [
            event("launch", 3, began=2),
            event("step", 4, step=8, seconds=1),
            event("error", 9.2, code=69, message="lost a peer"),
        ],
        [
            attempt("launched", 1, began=0),
            attempt("started", 2, first_rank=0),
            attempt("launched", 1.1, host="b", node=1, began=0.1),
            attempt("started", 2.1, host="b", node=1, first_rank=2),
            attempt("failed", 9.1, host="b", node=1, ranks=[KILLED]),
            attempt("ended", 9.3, host="b", node=1, exit=70),
            attempt("ended", 9.4, exit=69),
        ],
        [(70, 8)],
        "failed: exit 70 at step 8: rank 3: Signal 9 (SIGKILL)",
    ),
    "ranks restarted in place": (
        [
            event("launch", 3, began=2),
            event("step", 4, step=8, seconds=1),
            event("launch", 13, began=12),
            event("step", 14, step=9, seconds=1),
            event("summary", 15, steps=9),
        ],
        [
            attempt("launched", 1, began=0),
            attempt("started", 2, first_rank=0),
            attempt("failed", 10, ranks=[KILLED]),
            attempt("waiting", 11),
            attempt("started", 12, first_rank=0),
            attempt("ended", 16, exit=0),
        ],
        [(70, 8), (0, 9)],
        "finished: 9 steps in 16 s (2 attempts)",
    ),
    "a launcher that never met the others": (
        [],
        [attempt("launched", 1, began=0), attempt("ended", 9, exit=69, reason="nobody came")],
        [(69, None)],
        "failed: exit 69 at no step: nobody came",
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_attempts_and_how_the_last_one_ended(name: str, tmp_path: Path) -> None:
    events, launchers, expected, text = ENDINGS[name]
    hosts: dict[str, list[Any]] = {}
    for one in launchers:
        hosts.setdefault(one["host"], []).append(one)
    run = read(write(tmp_path, *events, launchers=hosts))
    assert endings(run) == expected
    found = verdict(run)
    assert f"{found.state}: {found.text}" == text


def test_steps_done_again_replace_the_former(tmp_path: Path) -> None:
    steps = [event("step", at, step=at, loss=float(at)) for at in (1, 2, 3)]
    again = [event("step", 10 + at, step=at, loss=10.0 * at) for at in (2, 4)]
    run = read(write(tmp_path, *steps, event("launch", 9), *again))
    assert run.curves["loss"] == Curve([1, 2, 4], [1.0, 20.0, 40.0])


def test_a_resumed_run_does_not_keep_the_events_of_its_past(tmp_path: Path) -> None:
    steps = [event("step", at, step=at, loss=1.0) for at in range(5000)]
    write(tmp_path, *steps, launchers={"a": [attempt("launched", 0)]})
    tracemalloc.start()
    Record(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000, f"{most:,} bytes"


def test_runs_in_folders_of_one_name_have_names_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / "digits" / "run", tmp_path / "tokens" / "run"]
    for folder in folders:
        folder.mkdir(parents=True)
        write(folder, event("step", 1, step=1))
    assert [run.name for run in read_all(folders)] == ["digits/run", "tokens/run"]
    assert [run.name for run in read_all([folders[0], folders[0]])] == ["run"]


def test_a_folder_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fault, match=r"no event in metrics.jsonl or logs/; is it a run's") as caught:
        read(tmp_path)
    assert caught.value.code == 65


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    re.findall(
        r"\w+",
        "time step steps loss began exit code ranks action host settings metric seconds data_s nodes "
        "world_size first_rank to kind accuracy message mesh parameters traceback reason last_lines "
        "rank operations calls first last communication_s name",
    )
)
KINDS = st.sampled_from(
    [
        "launch",
        "step",
        "eval",
        "checkpoint",
        "fault",
        "usage",
        "summary",
        "error",
        "attempt",
        "profile",
        "other",
    ]
)


@pytest.mark.slow
@given(
    st.lists(st.tuples(KINDS, st.dictionaries(NAMES, VALUES, max_size=8)), min_size=1, max_size=8)
)
def test_no_line_of_a_stranger_ends_the_reader(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, dict[str, Any]]]
) -> None:
    from trainer.report.page.tables import attempts, causes, command, facts, operations

    folder = tmp_path_factory.mktemp("run")
    write(
        folder, *({"event": kind, "time": 1} | fields for kind, fields in lines), event("step", 2)
    )
    run = read(folder)
    assert verdict(run).text
    assert 0 < len(why(run)) <= 10
    assert attempts(run)
    assert isinstance((causes(run), command(run), facts(run), operations(run)), tuple)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(11, "11 s"), (200, "3:20 min"), (8100, "2:15:00 h"), (-1.0, "-1 s"), (1e299, "1e+299 s")],
)
def test_any_number_of_seconds_has_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_an_attempt_that_was_stopped_is_not_one_whose_rank_failed(tmp_path: Path) -> None:
    from trainer.report.page.tables import attempts

    ended = [{"rank": 0, "exit": 143, "message": "ended"}]
    of_launcher = [attempt("failed", 4, ranks=ended), attempt("ended", 5, exit=143, reason="")]
    run = read(write(tmp_path, event("launch", 1, began=0), launchers={"a": of_launcher}))
    assert [row["cause"] for row in attempts(run)] == [MEANINGS[Exit.STOPPED].text]


def test_the_error_of_an_earlier_attempt_is_its_own(tmp_path: Path) -> None:
    from trainer.report.page.tables import attempts

    events, *_ = ENDINGS["a fault of rank 0, then a second start that went to the end"]
    again = [event("launch", 22), event("error", 23, code=64, message="other")]
    run = read(write(tmp_path, *events, *again))
    assert [row["cause"] for row in attempts(run)] == ["sample 7 cannot be read", "", "other"]
    assert "before    attempt 1: refused: rank 0" in why(run)


def test_an_earlier_attempt_that_was_stopped_names_no_rank(tmp_path: Path) -> None:
    ends = [
        event("fault", 2, kind="stopped", step=7),
        event("launch", 3),
        event("error", 4, code=64),
    ]
    run = read(write(tmp_path, event("launch", 1), *ends))
    assert "before    attempt 1: stopped" in why(run)


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, event("step", 1, step=1, loss=0.5))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "step", "ti\n\xff\xfe\n[1]\n{"event": 7, "time": 1}\n')
        file.write(b'{"event": "step", "time": NaN, "step": 2, "loss": 1}\n')
        file.write(b'{"event": "step", "time": 3, "step": "x", "loss": Infinity}\n')
        file.write(b'{"event": "profile", "time": 3, "operations": null}\n')
        file.write(b'{"event": ' + b"[" * 100_000 + b"\n")
    run = read(tmp_path)
    assert run.curves == {"loss": Curve([1], [0.5])}
    assert run.profile["operations"] == []
