"""Models cut into stages against one process: every schedule, alone and with data parallelism."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.test_parity import curve, worst
from tests.pool import Case, carry_out, lend
from tests.ranks import run_ranks, weights

pytestmark = pytest.mark.slow

COMMON = {
    "steps": "20",
    "eval_steps": "10",
    "checkpoint_steps": "0",
    "precision": "fp64",
    "clip_norm": "0.1",  # below most norms here
}
OPTIMIZERS = {"sgd": {}, "adamw": {"optimizer": "adamw", "lr": "0.001"}}
TASKS = {"digits": "digits", "deep": "tests.parity.tasks:Deep"}

# task, mode, ranks, settings; what the mesh replicates has micro-batches of its own, so a task with
# batch statistics can only be compared where it does not
CASES: list[tuple[str, str, int, dict[str, str]]] = [
    ("digits", "mp", 1, {}),
    ("deep", "mp", 1, {"stages": "5", "micro_batch": "4"}),
    ("digits", "pp", 2, {"pipeline_schedule": "gpipe"}),
    ("digits", "pp", 2, {"pipeline_schedule": "1f1b"}),
    ("digits", "pp", 2, {"pipeline_schedule": "interleaved-1f1b"}),
    ("digits", "pp", 2, {"pipeline_schedule": "interleaved-zb"}),
    ("digits", "pp", 2, {"pipeline_schedule": "zbv"}),
    ("deep", "pp", 4, {"pipeline_schedule": "gpipe", "micro_batch": "4"}),
    ("deep", "pp", 4, {"pipeline_schedule": "1f1b", "micro_batch": "4"}),
    ("deep", "pp", 4, {"pipeline_schedule": "interleaved-1f1b", "micro_batch": "4"}),
    ("deep", "pp", 4, {"pipeline_schedule": "interleaved-zb", "micro_batch": "4"}),
    ("deep", "pp", 4, {"pipeline_schedule": "zbv", "micro_batch": "4"}),
    ("digits", "pp", 4, {"mesh": "pp=2,dp_replicate=2"}),
    ("digits", "pp", 4, {"mesh": "pp=2,dp_shard=2"}),
    ("digits", "pp", 4, {"mesh": "pp=2,dp_shard=2", "pipeline_schedule": "zbv"}),
    ("digits", "pp", 8, {"mesh": "pp=2,dp_replicate=2,dp_shard=2"}),
]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Path, Any]]:
    runs = {}
    for task, name in TASKS.items():
        for optimizer, settings in OPTIMIZERS.items():
            folder = tmp_path_factory.mktemp(f"{task}-{optimizer}")
            events = run_ranks(
                1,
                folder,
                mode="single",
                task=name,
                micro_batch="4" if task == "deep" else "",
                **(COMMON | settings),
            )
            assert curve(events, "grad_norm").median() > float(COMMON["clip_norm"])
            runs[task, optimizer] = (folder, events)
    return runs


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("task", "mode", "ranks", "settings"), CASES, ids=str)
def test_a_cut_model_equals_the_whole(
    task: str,
    mode: str,
    ranks: int,
    settings: dict[str, str],
    optimizer: str,
    single: Any,
    tmp_path: Path,
) -> None:
    folder, expected = single[task, optimizer]
    common = COMMON | OPTIMIZERS[optimizer] | settings
    events = run_ranks(ranks, tmp_path, mode=mode, task=TASKS[task], **common)
    for name in ("loss", "grad_norm"):
        assert worst(curve(expected, name), curve(events, name)) < 1e-8
    mine = weights(tmp_path)
    whole = weights(folder)
    assert mine.keys() == whole.keys()
    for name, tensor in whole.items():
        difference = (tensor - mine[name]).double().norm()
        assert difference <= 1e-8 * tensor.double().norm(), name
    evaluated = [
        [(e["loss"], e["accuracy"]) for e in run if e["event"] == "eval"]
        for run in (expected, events)
    ]
    assert evaluated[0] == [pytest.approx(pair, rel=1e-8) for pair in evaluated[1]]


def _clip_by_the_stages_own_norm() -> None:
    from trainer.strategies import pp

    original = pp.clip
    pp.clip = lambda parameters, norm, **_: original(parameters, norm)  # type: ignore[assignment]


def _keep_each_replicas_gradients() -> None:
    from trainer.strategies import pp

    pp._add_up = lambda *_: None  # noqa: SLF001


@pytest.mark.parametrize(
    ("fault", "mesh"),
    [
        (_clip_by_the_stages_own_norm, "pp=2"),
        (_keep_each_replicas_gradients, "pp=2,dp_replicate=2"),
    ],
)
def test_a_planted_fault_is_seen(fault: Any, mesh: str, single: Any, tmp_path: Path) -> None:
    _, expected = single["digits", "sgd"]
    ranks = 4 if "," in mesh else 2
    settings = COMMON | {"task": "digits", "mode": "pp", "mesh": mesh}
    events = run_ranks(ranks, tmp_path, before=fault, **settings)
    assert worst(curve(expected, "loss"), curve(events, "loss")) > 1e-3


def test_a_checkpoint_goes_on_through_pipelines_and_back(tmp_path: Path) -> None:
    common = COMMON | OPTIMIZERS["adamw"] | {"task": "digits", "schedule": "constant"}
    whole = run_ranks(1, tmp_path / "whole", mode="single", **common)
    legs: list[tuple[int, dict[str, str]]] = [
        (4, {"mode": "pp", "mesh": "pp=2,dp_replicate=2", "pipeline_schedule": "zbv"}),
        (1, {"mode": "single"}),
        (4, {"mode": "pp", "mesh": "pp=2,dp_shard=2"}),
        (2, {"mode": "fsdp"}),
        (1, {"mode": "mp"}),
    ]
    for number, (ranks, settings) in enumerate(legs, start=1):
        parts = common | settings | {"steps": str(4 * number)}
        events = run_ranks(ranks, tmp_path / "parts", **parts)
    assert [e["step"] for e in events if e.get("action") == "resumed"] == [4, 8, 12, 16]
    assert worst(curve(whole, "loss"), curve(events, "loss")) < 1e-8


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (4, {"task": "charlm-gpt", "pipeline_schedule": "interleaved-1f1b"}),  # 8 stages, 4 pieces
        (2, {"task": "tests.parity.tasks:Whole"}),
    ],
)
def test_what_cannot_be_cut_is_refused_with_64(
    ranks: int, settings: dict[str, str], tmp_path: Path
) -> None:
    run_ranks(ranks, tmp_path, code=64, mode="pp", **settings)


def _die_in_the_third_step() -> None:
    from trainer.models.stages import Stage

    original, calls = Stage.forward, []

    def forward(self: Stage, x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if os.environ["RANK"] == "1" and len(calls) == 20:  # of 8 micro-batches a step
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, x)

    Stage.forward = forward  # type: ignore[method-assign]


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_who_loses_a_peer_in_the_middle_of_a_schedule_says_so(
    schedule: str, tmp_path: Path
) -> None:
    settings = {"MODE": "pp", "PIPELINE_SCHEDULE": schedule, "OUT": str(tmp_path), "LOG": "json"}
    variables = {f"TRAINER_{name}": value for name, value in settings.items()}
    with lend(2, fresh=True) as ranks:
        endings = carry_out(Case(variables, _die_in_the_third_step), ranks, timeout=60)
    assert [ending.code for ending in endings] == [69, -signal.SIGKILL], endings[0].words
