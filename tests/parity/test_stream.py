"""A stream trains as a map-style set of its samples does, and a killed run goes on with the next one."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Started, losses
from tests.parity.compare import curve, worst
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

TASKS = "tests.parity.stream_tasks"
COMMON = {"steps": "30", "global_batch": "48", "micro_batch": "8", "precision": "fp64"}
COMMON |= {"schedule": "constant", "checkpoint_steps": "4"}


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The events of a run over the map-style set; it is in its fourth epoch at the end."""
    folder = tmp_path_factory.mktemp("mapped")
    return run_ranks(1, folder, task=f"{TASKS}:Mapped", mode="single", **COMMON)


def are_equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    scores = [[e["accuracy"] for e in run if e["event"] == "eval"] for run in (one, other)]
    return scores[0] == scores[1] and worst(curve(one, "loss"), curve(other, "loss")) < 1e-12


@pytest.mark.parametrize(
    ("task", "ranks", "workers"),
    [("PlainTask", 1, "0"), ("PlainTask", 2, "2"), ("StateTask", 2, "0")],
)
def test_a_stream_is_a_set_in_its_own_order(
    task: str, ranks: int, workers: str, mapped: list[dict[str, Any]], tmp_path: Path
) -> None:
    mode = "ddp" if ranks > 1 else "single"
    events = run_ranks(
        ranks, tmp_path, task=f"{TASKS}:{task}", mode=mode, workers=workers, **COMMON
    )
    assert are_equal(mapped, events)


@pytest.mark.parametrize("task", ["PlainTask", "StateTask"])
def test_a_killed_run_goes_on_with_the_next_sample_on_any_number_of_ranks(
    task: str, mapped: list[dict[str, Any]], tmp_path: Path
) -> None:
    settings = COMMON | {"task": f"{TASKS}:{task}", "mode": "ddp"}
    variables = {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
    variables |= {"TRAINER_OUT": str(tmp_path / "run"), "TRAINER_LOG": "json"}
    variables |= {"TRAINER_LOG_STEPS": "1", "PET_NPROC_PER_NODE": "2"}
    # Sample 200 of the second epoch is read in step 13.
    killed = Started(tmp_path, "-m", "trainer.launch", env=variables | {"STREAM_DIES": "1:200"})
    try:
        assert killed.end().code == 70
    finally:
        killed.clear()
    begun = tmp_path / "run/begun"
    before = len(begun.read_text().split()) if begun.exists() else 0
    events = run_ranks(1, tmp_path / "run", **(settings | {"mode": "single"}))
    (resumed,) = [event["step"] for event in events if event.get("action") == "resumed"]
    assert resumed in (4, 8, 12)
    if task == "StateTask":
        # Read again: the trial's first sample, and those of the last step that were another rank's.
        places = [int(place) for place in begun.read_text().split()[before:]]
        assert places[0] == 0
        assert resumed * 48 - 24 <= next(place for place in places if place) <= resumed * 48
    assert losses(events) == pytest.approx(losses(mapped))
