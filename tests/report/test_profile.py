"""TRAINER_PROFILE: a valid trace of each rank, and the table in the report."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK
from tests.ranks import run_ranks
from trainer.report.history import read
from trainer.report.page.tables import operations

pytestmark = pytest.mark.slow


def trace_of(file: Path) -> list[dict[str, Any]]:
    """Return the complete events of a trace in the Trace Event Format."""
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    complete = [one for one in found if one.get("ph") == "X"]
    assert all(one["dur"] >= 0 and one["ts"] > 0 and one["name"] for one in complete)
    return complete


def test_each_rank_leaves_a_trace_of_those_steps(tmp_path: Path) -> None:
    events = run_ranks(2, tmp_path, task="synthetic", mode="ddp", steps="20", profile="11:13")
    (profiled,) = [event for event in events if event["event"] == "profile"]
    assert (profiled["first"], profiled["last"]) == (11, 13)
    files = sorted((tmp_path / "profile").iterdir())
    assert [file.name for file in files] == [f"rank-{r}-steps-11-13.json" for r in (0, 1)]
    for file in files:
        names = [one["name"] for one in trace_of(file)]
        assert sum(name.startswith("Optimizer.step") for name in names) == 3
        assert any("allreduce" in name or "all_reduce" in name for name in names)
    assert len(profiled["operations"]) == 10
    assert profiled["communication_s"] > 0
    times = [one["seconds"] for one in profiled["operations"]]
    assert times == sorted(times, reverse=True)
    assert sum(times) < profiled["seconds"] * 2  # two threads
    rows = operations(read(tmp_path))
    assert rows[0][0] == profiled["operations"][0]["name"]
    assert rows[-1][0] == "all collectives"


def test_a_run_that_ends_within_the_steps_leaves_what_there_was(tmp_path: Path) -> None:
    run_ranks(1, tmp_path, task="synthetic", steps="5", profile="4:100")
    (file,) = (tmp_path / "profile").iterdir()
    assert file.name == "rank-0-steps-4-5.json"
    assert trace_of(file)
    run_ranks(1, tmp_path / "not", task="synthetic", steps="5", profile="6:100")
    assert not (tmp_path / "not/profile").exists()


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("in the way")
    events = run_ranks(1, tmp_path, task="synthetic", steps="5", profile="2:3")
    assert events[-1]["event"] == "summary"
    assert [event["last"] for event in events if event["event"] == "profile"] == [3]


def test_a_signal_profiles_the_next_steps_of_a_node_or_a_rank_and_kills_none_before(
    start: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    more = {"TRAINER_STEPS": "1000000", "TRAINER_OUT": str(folder), "PET_NPROC_PER_NODE": "2"}
    run = start("-m", "trainer.launch", **(QUICK | more))
    run.wait_for("launch: this node's place")
    while '"event": "step"' not in run.read(run.out):
        assert run.process.poll() is None, run.read(run.stderr)
        for process in (run.process, *run.ranks()):
            process.send_signal(signal.SIGUSR2)
        time.sleep(0.01)
    run.process.send_signal(signal.SIGUSR2)
    before = profiled(folder, 2)
    run.process.send_signal(signal.SIGUSR2)
    both = profiled(folder, 2, before)
    assert {name[: len("rank-0")] for name in both - before} == {"rank-0", "rank-1"}
    run.ranks()[1].send_signal(signal.SIGUSR2)
    (last,) = profiled(folder, 1, both) - both
    rank, _, first, to = last.removesuffix(".json").split("-")[1:]
    assert (rank, int(to) - int(first)) == ("1", 4)
    assert trace_of(folder / "profile" / last)
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(timeout=60) == 143


def profiled(run: Path, count: int, before: frozenset[str] = frozenset()) -> frozenset[str]:
    """Wait until there are as many more traces, and for a second no other; return their names."""
    found, since, end = before, time.monotonic(), time.monotonic() + 60
    while len(found) < len(before) + count or time.monotonic() < since + 1:
        assert time.monotonic() < end, found
        time.sleep(0.1)
        if found != (now := frozenset(file.name for file in run.glob("profile/*"))):
            found, since = now, time.monotonic()
    return found
