"""Samples of any nesting train as plain ones do, in every mode that can have them."""

from pathlib import Path

import pytest

from tests.parity.compare import curve, worst
from tests.parity.conftest import Once
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

COMMON = {"steps": "20", "checkpoint_steps": "0", "precision": "fp64"}
SAMPLES, TARGETS = "tests.parity.nested_tasks:Samples", "tests.parity.nested_tasks:Targets"


@pytest.mark.parametrize(
    ("task", "mode", "ranks"),
    [
        (SAMPLES, "single", 1),
        (SAMPLES, "dp-balanced", 1),
        (SAMPLES, "ddp", 2),
        (SAMPLES, "ddp-zero1", 2),
        (SAMPLES, "fsdp", 2),
        (TARGETS, "mp", 1),
        (TARGETS, "pp", 2),
    ],
)
def test_samples_of_any_nesting_train_alike(
    task: str, mode: str, ranks: int, once: Once, tmp_path: Path
) -> None:
    whole = once(task="synthetic", mode="single", **COMMON)[1]
    events = run_ranks(ranks, tmp_path, task=task, mode=mode, micro_batch="8", **COMMON)
    assert worst(curve(whole, "loss"), curve(events, "loss")) < 1e-12
    scores = [[e["accuracy"] for e in run if e["event"] == "eval"][-1] for run in (whole, events)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("mode", "ranks", "settings"),
    [("localsgd", 2, {"local_steps": "5"}), ("hogwild", 1, {"processes": "2"})],
)
def test_modes_with_results_of_their_own_take_them(
    mode: str, ranks: int, settings: dict[str, str], tmp_path: Path
) -> None:
    events = run_ranks(ranks, tmp_path, task=SAMPLES, mode=mode, **COMMON, **settings)
    losses = curve(events, "loss")
    assert losses[-5:].mean() < losses[:5].mean()


@pytest.mark.parametrize(("mode", "ranks"), [("mp", 1), ("pp", 2)])
def test_stages_want_one_tensor(mode: str, ranks: int, tmp_path: Path) -> None:
    events = run_ranks(ranks, tmp_path, code=64, task=SAMPLES, mode=mode, micro_batch="8", **COMMON)
    assert events[-1]["message"] == (
        "model _Joined: its inputs are a dict, and between stages goes one tensor; use a mode without "
        "stages, such as fsdp"
    )
