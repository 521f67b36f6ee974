"""Ranks that keep others waiting: slow ones are named, stuck ones end the run with everyone's stacks."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import QUICK
from tests.faults.tasks import planted
from tests.ranks import free_port, run_ranks
from trainer.guards import where
from trainer.guards.straggler import Watch, Work, slowest

FOREVER = {"steps": "100000", "eval_steps": "0", "checkpoint_steps": "0"}


def faults(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "fault" and event["kind"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_rank_slowed_tenfold_is_named_within_thirty_seconds(mode: str, tmp_path: Path) -> None:
    plant = planted(SLOW="10", SLOW_RANK_1="100")
    slow = FOREVER | {"task": "tests.faults.tasks:Slow", "mode": mode, "steps": "110"}
    events = run_ranks(2, tmp_path, plant, **slow)
    (named,) = faults(events, "straggler")
    assert named["rank"] == 1
    assert named["time"] - events[0]["time"] < 30
    assert named["own_s"] > 3 * named["median_s"]
    assert "tasks.py" in named["at"]
    assert named["at"].endswith("in loss")


@pytest.mark.slow
def test_a_stuck_rank_is_named_with_its_line_and_all_end_with_69(tmp_path: Path) -> None:
    stuck = FOREVER | {"task": "tests.faults.tasks:Stuck", "collective_timeout": "4"}
    events = run_ranks(2, tmp_path, code=69, **stuck)
    (hang,) = faults(events, "hang")
    assert hang["time"] - events[0]["time"] < 4 + 20  # the bound, and what a busy machine adds
    assert (hang["step"], hang["missing"], hang["ranks_heard"]) == (3, [1], [0, 1])
    assert "step 4 hangs: no progress for 4 s" in events[-1]["message"]
    assert "not in the collective: rank 1 on" in events[-1]["message"]
    assert "in loss; stacks are in" in events[-1]["message"]
    assert "in loss" in (tmp_path / "logs/rank-1.stack").read_text(encoding="utf-8")
    assert "backward" in (tmp_path / "logs/rank-0.stack").read_text(encoding="utf-8")
    recorded = json.loads((tmp_path / "logs/rank-0.collectives.json").read_text(encoding="utf-8"))
    assert recorded["entries"][-1]["retired"] is False


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named_by_the_others(start: Any, tmp_path: Path) -> None:
    port = str(free_port())
    ranks = [
        start(
            "-m",
            "trainer",
            **(QUICK | {"TRAINER_STEPS": "100000", "TRAINER_COLLECTIVE_TIMEOUT": "4"}),
            TRAINER_OUT=str(tmp_path / "run"),
            TORCHELASTIC_RUN_ID="test",
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(2)
    ]
    ranks[0].wait_for('"step": 5,')
    ranks[1].process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    ended = ranks[0].end(timeout=30)
    assert time.monotonic() - began < 4 + 25  # the bound, 5 s for answers, and a busy machine
    assert ended.code == 69
    assert "no sign of life from rank 1 on" in ended.words
    assert ended.of("fault")[0]["missing"] == [1]
    assert (tmp_path / "run/logs/rank-0.stack").exists()


def test_what_tells_work_from_waiting_is_where_it_is_looked_for() -> None:
    for prefix in (*where._COLLECTIVE, *where._DEVICE, *where._BETWEEN):  # noqa: SLF001
        assert list(Path(prefix).parent.glob(f"{Path(prefix).name}*")), prefix


worlds = st.integers(2, 64)


@given(worlds, st.floats(0.05, 1.0), st.floats(0.7, 1.4), st.randoms())
@settings(max_examples=200)
def test_an_even_run_names_nobody(world: int, share: float, spread: float, random: Any) -> None:
    """However busy the ranks are, as long as they are alike to within forty percent."""
    work = {
        rank: Work(50, 5.0, 5.0 * min(1.0, share * random.uniform(min(1, spread), max(1, spread))))
        for rank in range(world)
    }
    assert slowest(work) is None


@given(worlds, st.data())
def test_a_rank_that_works_ten_times_as_long_is_found(world: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, world - 1))
    noise = st.floats(0.5, 1.5)
    own = {rank: 0.1 * data.draw(noise) for rank in range(world)} | {culprit: 0.98}
    found = slowest({rank: Work(20, 10.0, 10.0 * share) for rank, share in own.items()})
    assert found is not None
    assert found.rank == culprit


def test_it_takes_two_windows_in_a_row_and_is_told_once() -> None:
    watch, named = Watch(), []
    seconds = [0.0, 0.0]
    slow = [1, 0, 1, 1, 1, 1]  # who is slow in each window
    assert watch.see({0: Work(), 1: Work()}, 0.0) is None
    for window, culprit in enumerate(slow, start=1):
        seconds[culprit] += 5.5
        work = {rank: Work(10 * window, 6.0 * window, seconds[rank]) for rank in range(2)}
        found = watch.see(work, 6.0 * window)
        named.append(None if found is None else found.rank)
    assert named == [None, None, None, 1, None, None]


def test_within_a_few_steps_nobody_is_judged() -> None:
    watch = Watch()
    assert watch.see({0: Work(), 1: Work()}, 0.0) is None
    assert watch.see({0: Work(1, 60.0, 60.0), 1: Work(1, 60.0, 0.0)}, 60.0) is None
