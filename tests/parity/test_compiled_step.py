"""A step that is compiled whole: what the table does not show, and when it is not compiled."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.faults.tasks import planted
from tests.parity.compare import differences
from tests.parity.conftest import Once
from tests.parity.table import TOLERANCE, reference
from tests.ranks import run_ranks, weights
from trainer.tasks import digits

pytestmark = pytest.mark.slow

ADAMW = reference("digits", "adamw", "fp64")
SGD = reference("digits", "sgd", "fp64")


class Branching(digits.Task):
    """Its model looks into the data, which no graph can."""

    def model(self) -> nn.Module:
        return _Branching()


class _Branching(digits.Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images if images.sum() > 0 else images * 1)


@pytest.mark.parametrize(("mode", "ranks"), [("single", 1), ("ddp", 2)])
def test_a_step_that_is_not_finite_changes_nothing(mode: str, ranks: int, tmp_path: Path) -> None:
    """Weights, state and BatchNorm's statistics are those of a run that skips the same steps."""
    settings = {"task": "tests.faults.tasks:Poisoned", "steps": "8", "eval_steps": "0"}
    settings |= {"mode": mode, "precision": "fp64", "optimizer": "adamw"}
    for compiled in ("false", "step"):
        plant = planted(POISONED="3,5")
        events = run_ranks(ranks, tmp_path / compiled, plant, compile=compiled, **settings)
        assert events[0]["compiled_step"] == (compiled == "step")
        assert [event["step"] for event in events if event.get("kind") == "nonfinite"] == [3, 5]
        assert events[-1]["skipped_steps"] == 2
    one, other = weights(tmp_path / "false"), weights(tmp_path / "step")
    assert all(torch.allclose(one[name], other[name], rtol=1e-10, atol=0) for name in one)


@pytest.mark.parametrize("first", ["step", "false"])
def test_a_run_goes_on_compiled_or_not(first: str, once: Once, tmp_path: Path) -> None:
    settings = ADAMW | {"schedule": "constant"}
    run_ranks(1, tmp_path, compile=first, **settings | {"steps": "7"})
    then = "false" if first == "step" else "step"
    run_ranks(1, tmp_path, compile=then, **settings)
    found = differences(once(**settings), (tmp_path, _steps(tmp_path, kinds=("step", "eval"))))
    assert max(found.values()) < TOLERANCE["fp64"]


def test_the_numbers_of_a_model_are_those_of_its_steps(once: Once, tmp_path: Path) -> None:
    """The step that is tried before the first one is not counted."""
    counts = {"task": "tests.parity.odd_models:Counts", "steps": "20", "precision": "fp64"}
    single = once(mode="single", **counts)
    events = run_ranks(1, tmp_path, mode="single", compile="step", **counts)
    assert events[0]["compiled_step"] is True
    assert max(differences(single, (tmp_path, events)).values()) < TOLERANCE["fp64"]


def _compile_once() -> None:
    from torch._dynamo import config

    config.recompile_limit = 1


def test_a_step_that_is_always_compiled_anew_ends_with_64(tmp_path: Path) -> None:
    settings = {"task": "tests.parity.odd_models:Counts", "steps": "6", "mode": "single"}
    events = run_ranks(1, tmp_path, _compile_once, code=64, compile="step", **settings)
    assert "TRAINER_COMPILE=step: the step would be compiled too often" in events[-1]["message"]


NOT_COMPILED = {
    "muon": (1, {"optimizer": "muon"}, "a Muon has no form that can be compiled"),
    "fp16 hook": (2, {"mode": "ddp", "comm_hook": "fp16"}, "a communication hook is DDP's"),
    "recomputing": (1, {"activation_checkpointing": "true"}, "blocks are recomputed by autograd"),
    "data": (1, {"task": "tests.parity.test_compiled_step:Branching"}, "Data-dependent"),
    "unused": (
        1,
        {"task": "tests.faults.tasks:Unused"},
        "the loss does not depend on spare.weight",
    ),
    "hook": (
        1,
        {"task": "tests.parity.odd_models:Hooked"},
        "a hook on the gradient of 0.weight would not be called",
    ),
    "recomputing itself": (
        1,
        {"task": "tests.parity.odd_models:RecomputesItself"},
        "BackendCompilerFailed: backend='inductor' raised: RuntimeError: ",
    ),
    "weights": (
        1,
        {"task": "tests.parity.odd_models:Clamped"},
        "the model changes weights in its forward pass",
    ),
    "buffer": (
        1,
        {"task": "tests.parity.own_tasks:ReplacesABuffer"},
        "the model replaces buffers in its forward pass; change them in place",
    ),
}


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_what_cannot_be_compiled_runs_as_it_is_and_says_why(
    name: str, once: Once, tmp_path: Path, start: Any
) -> None:
    ranks, settings, reason = NOT_COMPILED[name]
    wanted = SGD | settings
    plain = once(ranks, **wanted)
    variables = {f"TRAINER_{key.upper()}": value for key, value in wanted.items()}
    started = start(
        "-m",
        "trainer.launch",
        PET_NPROC_PER_NODE=str(ranks),
        TRAINER_COMPILE="step",
        TRAINER_LOG_STEPS="1",
        TRAINER_OUT=str(tmp_path),
        **variables,
    )
    ended = started.end()
    assert ended.code == 0, ended.stderr
    said = [line for line in ended.stderr.splitlines() if "TRAINER_COMPILE=step: the steps" in line]
    assert len(said) == 1
    assert reason in said[0]
    events = _steps(tmp_path, kinds=("launch", "step", "eval"))
    assert events[0]["compiled_step"] is False
    assert max(differences(plain, (tmp_path, events)).values()) < TOLERANCE["fp64"]


def _steps(folder: Path, kinds: tuple[str, ...] = ("step",)) -> list[dict[str, Any]]:
    import json

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for line in lines if (event := json.loads(line))["event"] in kinds]
