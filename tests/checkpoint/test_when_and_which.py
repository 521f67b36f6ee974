"""When a run saves and which checkpoints it keeps: by steps, by the clock, by the metric, for good."""

import math
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.tasks import planted
from tests.ranks import run_ranks
from trainer.checkpoint.find import complete
from trainer.checkpoint.retention import Keep, removable

metrics = st.dictionaries(st.integers(1, 200), st.one_of(st.none(), st.floats(0, 1)), min_size=1)
keeps = st.builds(Keep, st.integers(1, 4), st.integers(0, 30), st.integers(0, 3))


@given(metrics, keeps)
def test_what_goes_is_neither_new_nor_best_nor_the_first_of_its_stretch(
    found: dict[int, float | None], keep: Keep
) -> None:
    gone = set(removable(found, keep))
    stay = sorted(found.keys() - gone)
    assert stay[-1] == max(found)
    assert gone.isdisjoint(sorted(found)[-keep.last :])
    scored = sorted((value for value in found.values() if value is not None), reverse=True)
    best = scored[: keep.best]
    assert (
        sorted((v for s in stay if (v := found[s]) is not None), reverse=True)[: len(best)] == best
    )
    for step in gone if keep.every else ():
        earlier = [s for s in stay if s // keep.every == step // keep.every and s < step]
        assert step < keep.every or earlier
    # The answer is the same after a restart, and a kept checkpoint is kept again.
    assert removable({step: found[step] for step in stay}, keep) == []


def test_a_metric_that_is_nan_is_none() -> None:
    found = {1: math.nan, 2: 0.9, 3: 0.5, 4: math.nan, 5: 0.6}
    assert removable(found, Keep(1, best=1)) == [1, 3, 4]
    assert removable({1: math.nan, 2: math.nan}, Keep(1, best=1)) == [1]


def saved(events: list[dict[str, Any]]) -> list[int]:
    return [event["step"] for event in events if event.get("action") == "saved"]


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name[-8:]) for path in folder.glob("step-*"))


@pytest.mark.slow
def test_minutes_and_steps_each_ask_for_checkpoints(tmp_path: Path) -> None:
    common = {"task": "synthetic", "steps": "9", "eval_steps": "0"}
    # So long that the ranks agree at each step.
    slow = planted(SLOW="120", SLOW_RANK_1="120")
    clock = {
        "task": "tests.faults.tasks:Slow",
        "checkpoint_steps": "0",
        "checkpoint_minutes": "1e-6",
    }
    by_clock = run_ranks(2, tmp_path / "clock", slow, **(common | clock))
    # They agree on the step after a rank has asked, and ask once for each save.
    assert saved(by_clock) == [2, 4, 6, 8, 9]
    assert saved(run_ranks(2, tmp_path / "steps", checkpoint_steps="4", **common)) == [4, 8, 9]
    assert saved(run_ranks(1, tmp_path / "end", checkpoint_steps="0", **common)) == [9]


@pytest.mark.slow
def test_the_newest_the_best_and_one_of_every_few_stay(tmp_path: Path) -> None:
    events = run_ranks(
        1,
        tmp_path,
        task="synthetic",
        steps="13",
        lr="0.5",
        checkpoint_steps="2",
        eval_steps="3",
        checkpoint_keep="1",
        checkpoint_keep_every="4",
        checkpoint_keep_best="1",
    )
    # every second step, with a score after every third, and the end
    assert saved(events) == [2, 3, 4, 6, 8, 9, 10, 12, 13]
    scores = {event["step"]: event["accuracy"] for event in events if event["event"] == "eval"}
    assert scores.keys() == {3, 6, 9, 12, 13}
    best = max(scores, key=lambda step: (scores[step], step))
    assert {*steps_in(tmp_path / "checkpoints")} == {4, 8, 12, 13, best}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["same", "another"])
def test_a_run_from_an_early_checkpoint_keeps_its_own_and_sets_later_ones_aside(
    where: str, tmp_path: Path
) -> None:
    first = {"task": "synthetic", "eval_steps": "0", "checkpoint_steps": "2"}
    second = first | {"lr": "0.5", "checkpoint_keep": "2"}
    run_ranks(1, tmp_path / "same", steps="12", checkpoint_keep="9", **first)
    if where == "another":
        shutil.copytree(tmp_path / "same", tmp_path / where)
    early = f"force:{tmp_path}/same/checkpoints/step-00000004"
    run_ranks(1, tmp_path / where, resume=early, steps="8", **second)
    run = tmp_path / where
    assert steps_in(run / "checkpoints") == ([4, 6, 8] if where == "same" else [6, 8])
    assert steps_in(run / "checkpoints" / "aside.1") == [6, 8, 10, 12]
    events = run_ranks(1, run, steps="10", **second)
    assert [e["step"] for e in events if e.get("action") == "resumed"] == [4, 8]


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_sets_none_aside(tmp_path: Path) -> None:
    common = {"steps": "4", "eval_steps": "0", "checkpoint_steps": "2"}
    run_ranks(1, tmp_path / "other", task="synthetic", **common)
    run_ranks(1, tmp_path / "run", task="digits", **common)
    early = f"force:{tmp_path}/other/checkpoints/step-00000002"
    run_ranks(1, tmp_path / "run", task="digits", resume=early, code=65, **common)
    assert steps_in(tmp_path / "run" / "checkpoints") == [2, 4]


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_a_finished_run_that_is_evaluated_again_has_the_metric_in_its_checkpoint(
    named: object, tmp_path: Path
) -> None:
    common = {"task": "synthetic", "steps": "4", "checkpoint_steps": "2", "eval_steps": "0"}
    run_ranks(1, tmp_path, **common)  # as after a stop request in the last evaluation
    last = str(tmp_path / "checkpoints" / "step-00000004")
    assert complete(last).manifest.metric is None
    resume = f"/..{last}" if named else "auto"  # another way to write its path
    events = run_ranks(2, tmp_path, checkpoint_keep_best="1", resume=resume, **common)
    scores = [event["accuracy"] for event in events if event["event"] == "eval"]
    assert scores == [scores[0]] * 2
    assert complete(last).manifest.metric == scores[0]


def in_a_folder_of_its_own(folder: Path) -> None:
    (own := folder / os.environ["RANK"]).mkdir()
    os.chdir(own)


@pytest.mark.slow
def test_a_named_checkpoint_is_read_though_the_nodes_share_no_folder(tmp_path: Path) -> None:
    common = {"task": "synthetic", "eval_steps": "0", "steps": "4"}
    run_ranks(1, tmp_path / "first", checkpoint_steps="2", **common)
    named = f"{tmp_path}/first/checkpoints/step-00000002"
    separate = partial(in_a_folder_of_its_own, tmp_path)
    events = run_ranks(2, tmp_path / "run", separate, checkpoints="of-node", resume=named, **common)
    assert [event["step"] for event in events if event["event"] == "step"] == [3, 4]
    assert [event["action"] for event in events if event["event"] == "checkpoint"] == ["resumed"]


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "force:", "file://", "/.."])
def test_a_restart_of_a_run_from_a_named_checkpoint_still_has_it(
    before: str, tmp_path: Path
) -> None:
    common = {"task": "synthetic", "eval_steps": "0", "checkpoint_steps": "2", "steps": "8"}
    run_ranks(1, tmp_path, checkpoint_keep="3", **common)
    named = f"{before}{tmp_path}/checkpoints/step-00000004"
    for _ in range(2):
        run_ranks(1, tmp_path, checkpoint_keep="1", resume=named, **common)
        assert steps_in(tmp_path / "checkpoints") == [4, 8]
