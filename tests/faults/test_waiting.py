"""Slow ranks are named. A stuck rank ends the run, with the stacks of all ranks."""

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import QUICK, ROOT
from tests.faults.cluster import faults
from tests.faults.tasks import planted
from tests.pool import carry_out, lend
from tests.pool_rank import Case
from tests.ranks import run_ranks
from trainer.watch import position
from trainer.watch.straggler import StragglerDetector, Work, slowest

FOREVER = {"steps": "100000", "eval_steps": "0", "checkpoint_steps": "0"}


STUCK = FOREVER | {"task": "tests.faults.tasks:Stuck", "collective_timeout": "4"}


@pytest.mark.slow
def test_a_rank_slowed_tenfold_is_named_within_thirty_seconds(tmp_path: Path) -> None:
    plant = planted(SLOW="80", SLOW_RANK_1="800")
    slow = FOREVER | {"task": "tests.faults.tasks:Slow", "steps": "18"}
    modes = ("ddp", "fsdp")  # at the same time, because they mostly sleep
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(run_ranks, 2, tmp_path / m, plant, mode=m, **slow) for m in modes]
    for run in runs:
        check_straggler(run.result())


def check_straggler(events: list[dict[str, Any]]) -> None:
    (named,) = faults(events, "straggler")
    assert named["rank"] == 1
    assert named["time"] - events[0]["time"] < 30
    assert named["own_s"] > 3 * named["median_s"]
    assert "tasks.py" in named["at"]
    assert named["at"].endswith("in loss")
    used = [event["ranks"] for event in events if event["event"] == "usage"]
    assert [one["rank"] for one in used[-1]] == [0, 1]  # what `python -m k8s top` shows
    assert all(one["memory"] > 2**24 for one in used[-1])
    # A rank that slept during the whole last window, which ends with the run, has used nothing in it.
    assert all(max(ranks[rank]["cpu"] for ranks in used) > 0 for rank in (0, 1))


def closes_slowly() -> None:
    """Give the watchdog time to report between the summary and the end of a run."""
    from trainer.engine import loop

    requests = loop.stop_requests

    @contextlib.contextmanager
    def slowly(*arguments: Any) -> Iterator[Any]:
        with requests(*arguments) as stop:
            yield stop
            time.sleep(3)

    loop.stop_requests = slowly  # type: ignore[assignment]


@pytest.mark.slow
def test_the_summary_is_the_last_event(tmp_path: Path) -> None:
    events = run_ranks(2, tmp_path, closes_slowly, task="synthetic", steps="3")
    assert events[-1]["event"] == "summary"


@pytest.mark.slow
def test_a_stuck_rank_is_named_with_its_line_and_all_end_with_69(tmp_path: Path) -> None:
    events = run_ranks(2, tmp_path, planted(STUCK="1"), code=69, **STUCK)
    (hang,) = faults(events, "hang")
    assert hang["time"] - events[0]["time"] < 4 + 20  # the limit, and more for a busy machine
    assert (hang["step"], hang["missing"], hang["ranks_heard"]) == (3, [1], [0, 1])
    assert "step 4 hangs: no progress for 4 s" in events[-1]["message"]
    assert "not in the collective: rank 1 on" in events[-1]["message"]
    assert "in loss; stacks are in" in events[-1]["message"]
    assert "in loss" in (tmp_path / "logs/rank-1.stack").read_text(encoding="utf-8")
    assert "backward" in (tmp_path / "logs/rank-0.stack").read_text(encoding="utf-8")
    recorded = json.loads((tmp_path / "logs/rank-0.collectives.json").read_text(encoding="utf-8"))
    assert recorded["entries"][-1]["retired"] is False


@pytest.mark.slow
def test_a_full_disk_costs_the_stacks_and_not_the_end(tiny_disk: Path) -> None:
    with contextlib.suppress(OSError):
        (tiny_disk / "ballast").write_bytes(bytes(2**20 - 3 * 4096))
    variables = {f"TRAINER_{name.upper()}": value for name, value in STUCK.items()}
    variables |= {"TRAINER_OUT": str(tiny_disk / "run"), "TRAINER_PREFLIGHT": "off"}
    case = Case(variables | {"TRAINER_LOG_STEPS": "1"}, planted(STUCK="1"))
    with lend(2, fresh=True) as ranks:
        endings = carry_out(case, ranks, timeout=60)
    for ending in endings:
        assert ending.code == 69, ending.stderr
        assert "not in the collective: rank 1 on" in ending.stderr
        assert (
            f"{tiny_disk}/run/logs: No space left on device; the stacks are missing"
            in ending.stderr
        )


@pytest.mark.slow
def test_a_rank_that_hangs_before_the_first_step_is_named_too(tmp_path: Path) -> None:
    events = run_ranks(2, tmp_path, planted(STUCK="1", HOW="building"), code=69, **STUCK)
    (hang,) = faults(events, "hang")
    assert hang["missing"] == [1]
    assert "the start, before the first step, hangs: no progress for 4 s" in events[-1]["message"]
    assert "in model; stacks are in" in events[-1]["message"]
    assert "in model" in (tmp_path / "logs/rank-1.stack").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_by_those_that_wait(start: Any, tmp_path: Path) -> None:
    variables = {f"TRAINER_{name.upper()}": value for name, value in STUCK.items()}
    ended = start(
        "-m",
        "trainer.launch",
        **(variables | {"STUCK": "1", "HOW": "loading", "PET_NPROC_PER_NODE": "2"}),
        TRAINER_OUT=str(tmp_path / "run"),
        PYTHONPATH=str(ROOT),
    ).end(timeout=60)
    assert ended.code == 69, ended.stderr
    assert "rank 1 (node 0) did not join within 4 s" in ended.stderr
    assert "Traceback" not in ended.stderr


GRID = {"mode": "pp", "mesh": "pp=2,dp_shard=2", "micro_batch": "8"}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stuck", "killed"])
def test_a_peer_lost_in_a_mesh_is_named_and_not_the_ranks_that_wait_for_it(
    how: str, tmp_path: Path
) -> None:
    """Rank 0 never communicates with rank 3. It waits for two ranks that do, and must not name these."""
    variables = {f"TRAINER_{name.upper()}": value for name, value in (STUCK | GRID).items()}
    variables |= {"TRAINER_OUT": str(tmp_path), "TRAINER_LOG_STEPS": "1"}
    with lend(4, fresh=True) as ranks:
        case = Case(variables, planted(STUCK="3", HOW=how))
        endings = carry_out(case, ranks, timeout=90)
    killed = how == "killed"
    assert [end.code for end in endings] == [69, 69, 69, -9 if killed else 69], endings
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    if killed:
        message = events[-1]["message"]
        assert "lost a peer" in message or "no sign of life from rank 3 on" in message
        assert "rank 1" not in message
    else:
        assert faults(events, "hang")[0]["missing"] == [3]
        assert "not in the collective: rank 3 on" in events[-1]["message"]
        assert len(list((tmp_path / "logs").glob("rank-*.stack"))) == 4


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named_by_the_others(start: Any, tmp_path: Path) -> None:
    """The launcher also ends with 69 soon, although a stopped rank does not handle SIGTERM."""
    started = start(
        "-m",
        "trainer.launch",
        **(QUICK | {"TRAINER_STEPS": "100000", "TRAINER_COLLECTIVE_TIMEOUT": "4"}),
        TRAINER_OUT=str(tmp_path / "run"),
        PET_NPROC_PER_NODE="2",
    )
    started.wait_for('"step": 5,')
    family = started.family()
    started.ranks()[1].suspend()
    began = time.monotonic()
    ended = started.end(timeout=60)
    assert time.monotonic() - began < 4 + 20  # limit, 5 s for answers, busy machine
    assert ended.code == 69, ended.stderr
    assert "no sign of life from rank 1 on" in ended.stderr
    assert ended.of("fault")[0]["missing"] == [1]
    assert (tmp_path / "run/logs/rank-0.stack").exists()
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_the_files_that_position_knows_exist() -> None:
    for prefix in (*position._COLLECTIVE, *position._DEVICE, *position._BETWEEN):  # noqa: SLF001
        assert list(Path(prefix).parent.glob(f"{Path(prefix).name}*")), prefix


worlds = st.integers(2, 64)


@given(worlds, st.floats(0.05, 1.0), st.floats(0.7, 1.4), st.randoms())
@settings(max_examples=200)
def test_an_even_run_names_nobody(world: int, share: float, spread: float, random: Any) -> None:
    """No rank is named if the ranks' times differ by less than forty percent, however busy they are."""
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


def test_it_takes_two_windows_in_a_row_and_is_reported_once() -> None:
    detector, named = StragglerDetector(), []
    seconds = [0.0, 0.0]
    slow = [1, 0, 1, 1, 1, 1]  # the slow rank of each window
    assert detector.update({0: Work(), 1: Work()}, 0.0) is None
    for window, culprit in enumerate(slow, start=1):
        seconds[culprit] += 5.5
        work = {rank: Work(10 * window, 6.0 * window, seconds[rank]) for rank in range(2)}
        found = detector.update(work, 6.0 * window)
        named.append(None if found is None else found.rank)
    assert named == [None, None, None, 1, None, None]


def test_within_a_few_steps_nobody_is_judged() -> None:
    detector = StragglerDetector()
    assert detector.update({0: Work(), 1: Work()}, 0.0) is None
    assert detector.update({0: Work(1, 60.0, 60.0), 1: Work(1, 60.0, 0.0)}, 60.0) is None
