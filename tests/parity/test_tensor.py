"""Layers split over ranks against one process: alone, sharded, replicated, with either setting."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.test_parity import curve, worst
from tests.ranks import run_ranks, weights

pytestmark = pytest.mark.slow

COMMON = {
    "task": "charlm-gpt",
    "steps": "20",
    "global_batch": "8",
    "eval_steps": "0",
    "checkpoint_steps": "0",
    "precision": "fp64",
    "clip_norm": "0.1",  # below every norm here
}
OPTIMIZERS = {"sgd": {}, "adamw": {"optimizer": "adamw", "lr": "0.001"}}

# ranks and settings; an optimiser to each, so that both meet alone, sharded and replicated
CASES: list[tuple[int, str, dict[str, str]]] = [
    (2, "sgd", {}),
    (2, "adamw", {"sequence_parallel": "false", "micro_batch": "2"}),
    (2, "adamw", {"loss_parallel": "true", "micro_batch": "2"}),
    (4, "sgd", {"mesh": "dp_shard=2,tp=2", "micro_batch": "1"}),
    (4, "adamw", {"mesh": "dp_replicate=2,tp=2", "micro_batch": "1"}),
    (8, "adamw", {"mesh": "dp_replicate=2,dp_shard=2,tp=2", "loss_parallel": "true"}),
    (4, "sgd", {"mesh": "pp=2,tp=2", "micro_batch": "2", "loss_parallel": "true"}),
    (8, "adamw", {"mesh": "pp=2,dp_replicate=2,tp=2", "pipeline_schedule": "zbv"}),
    (8, "adamw", {"mesh": "pp=2,dp_shard=2,tp=2", "micro_batch": "1"}),
]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Any]]]:
    runs = {}
    for name, optimizer in OPTIMIZERS.items():
        folder = tmp_path_factory.mktemp(f"gpt-{name}")
        runs[name] = (folder, run_ranks(1, folder, mode="single", **(COMMON | optimizer)))
        assert curve(runs[name][1], "grad_norm").min() > float(COMMON["clip_norm"])
    return runs


@pytest.mark.parametrize(("ranks", "optimizer", "settings"), CASES, ids=str)
def test_split_layers_equal_whole_ones(
    ranks: int, optimizer: str, settings: dict[str, str], single: Any, tmp_path: Path
) -> None:
    folder, expected = single[optimizer]
    mode = "auto" if "mesh" in settings else "tp"
    events = run_ranks(ranks, tmp_path, mode=mode, **(COMMON | OPTIMIZERS[optimizer] | settings))
    for name in ("loss", "grad_norm"):
        assert worst(curve(expected, name), curve(events, name)) < 1e-8
    mine = weights(tmp_path)
    for name, tensor in weights(folder).items():
        assert (tensor - mine[name]).norm() < 1e-8 * tensor.norm(), name
    evaluated = [[e for e in run if e["event"] == "eval"][-1] for run in (expected, events)]
    assert evaluated[0]["loss"] == pytest.approx(evaluated[1]["loss"], rel=1e-8)
    assert evaluated[0]["accuracy"] == evaluated[1]["accuracy"]
    assert evaluated[0]["samples"] == evaluated[1]["samples"]


def _clip_by_the_local_norm() -> None:
    from torch.nn.utils import get_total_norm

    from trainer import strategies

    def local(gradients: Any, _: Any) -> torch.Tensor:
        return get_total_norm([gradient.to_local() for gradient in gradients])

    strategies.global_norm = local


def _count_what_all_have_many_times() -> None:
    from trainer import strategies

    original = strategies.global_norm

    def twice(gradients: Any, group: Any) -> torch.Tensor:
        square = original(gradients, group).square()
        whole = [g.to_local() for g in gradients if g.placements[-1].is_replicate()]
        return (square + torch.nn.utils.get_total_norm(whole).square()).sqrt()

    strategies.global_norm = twice


def _keep_the_parts_of_the_norms_gradients() -> None:
    from trainer.strategies import tp

    original = tp.complete

    def local(parameters: Any) -> None:
        for parameter in parameters:
            grad = parameter.grad
            if any(placement.is_partial() for placement in grad.placements):
                part, mesh = grad.to_local(), grad.device_mesh
                parameter.grad = type(grad).from_local(part, mesh, parameter.placements)
        original(parameters)

    tp.complete = local


@pytest.mark.parametrize(
    "fault",
    [
        _clip_by_the_local_norm,
        _count_what_all_have_many_times,
        _keep_the_parts_of_the_norms_gradients,
    ],
)
def test_a_planted_fault_is_seen(fault: Any, single: Any, tmp_path: Path) -> None:
    _, expected = single["sgd"]
    events = run_ranks(2, tmp_path, before=fault, mode="tp", **COMMON)
    seen = [worst(curve(expected, name), curve(events, name)) for name in ("loss", "grad_norm")]
    assert max(seen) > 1e-6


def test_a_checkpoint_goes_on_through_tp_and_back(tmp_path: Path) -> None:
    common = COMMON | OPTIMIZERS["adamw"] | {"schedule": "constant"}
    whole = run_ranks(1, tmp_path / "whole", mode="single", **common)
    legs: list[tuple[int, dict[str, str]]] = [
        (4, {"mode": "tp", "mesh": "dp_shard=2,tp=2"}),
        (2, {"mode": "fsdp"}),
        (2, {"mode": "tp"}),
        (1, {"mode": "single", "steps": "20"}),
    ]
    for number, (ranks, settings) in enumerate(legs, start=1):
        parts = common | {"steps": str(4 * number)} | settings
        events = run_ranks(ranks, tmp_path / "parts", **parts)
    assert [e["step"] for e in events if e.get("action") == "resumed"] == [4, 8, 12]
    assert worst(curve(whole, "loss"), curve(events, "loss")) < 1e-8


@pytest.mark.parametrize(
    ("ranks", "settings", "message"),
    [
        (
            2,
            {"task": "charlm-lstm"},
            "its model Recurrent cannot be split over the axis tp: it offers",
        ),
        (8, {}, "the 4 heads of its model do not divide over tp=8; tp=4 would do"),
    ],
)
def test_what_cannot_be_split_is_refused_with_64(
    ranks: int, settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    events = run_ranks(ranks, tmp_path, code=64, mode="tp", **(COMMON | settings))
    assert message in events[-1]["message"]
