"""Every mode against one process: same global batches, same losses, gradient norms and weights."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ranks import run_ranks, weights

pytestmark = pytest.mark.slow

STEPS = 20
COMMON = {"task": "digits", "steps": str(STEPS), "eval_steps": "0", "checkpoint_steps": "0"}
OPTIMIZERS: dict[str, dict[str, str]] = {
    "sgd": {"optimizer": "sgd", "steps": "50"},
    # In float32 AdamW divides noise by noise where a gradient is nothing but rounding, as under a
    # constant background; in float64 nothing is left to chance.
    "sgd64": {"optimizer": "sgd", "precision": "fp64"},
    "adamw64": {"optimizer": "adamw", "lr": "0.001", "precision": "fp64"},
}
# Largest relative difference of losses; norms and weights may be ten times as far apart.
TOLERANCE = {"sgd": 1e-5, "sgd64": 1e-10, "adamw64": 1e-8}


def curve(events: list[dict[str, Any]], name: str) -> torch.Tensor:
    values = [event[name] for event in events if event["event"] == "step"]
    assert len(values) >= STEPS
    return torch.tensor(values, dtype=torch.float64)


def worst(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest relative difference."""
    return float(((one - other).abs() / one.abs().clamp(min=1e-8)).max())


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Any]]]:
    runs = {}
    for name, optimizer in OPTIMIZERS.items():
        folder = tmp_path_factory.mktemp(f"single-{name}")
        runs[name] = (folder, run_ranks(1, folder, mode="single", **(COMMON | optimizer)))
    return runs


# mode, ranks, mesh, micro-batch of the 32 samples of a step
CASES = [
    ("single", 1, "", "8"),
    ("dp", 1, "", "8"),
    ("dp-balanced", 1, "", "8"),
    ("ddp", 2, "", "16"),
    ("ddp", 2, "", "4"),
    ("ddp", 4, "", "8"),
    ("ddp-zero1", 2, "", "4"),
    ("ddp-zero1", 4, "", "8"),
    ("fsdp", 2, "", "4"),
    ("fsdp", 4, "", "8"),
    ("hsdp", 4, "dp_replicate=2,dp_shard=2", "4"),
]


@pytest.mark.parametrize("optimizer", ["sgd64", "adamw64"])
@pytest.mark.parametrize(("mode", "ranks", "mesh", "micro"), CASES)
def test_a_mode_equals_one_process(
    mode: str, ranks: int, mesh: str, micro: str, optimizer: str, single: Any, tmp_path: Path
) -> None:
    compare(single, tmp_path, optimizer, ranks, mode=mode, mesh=mesh, micro_batch=micro)


# the sequence models, each under a mode that shards and one that does not
SEQUENCES = [
    ("charlm-lstm", "ddp", 2, ""),
    ("charlm-lstm", "fsdp", 2, ""),
    ("charlm-gru", "fsdp", 2, ""),
    ("charlm-gpt", "ddp", 2, ""),
    ("charlm-gpt", "hsdp", 4, "dp_replicate=2,dp_shard=2"),
]


@pytest.mark.parametrize(("task", "mode", "ranks", "mesh"), SEQUENCES)
def test_sequence_models_equal_one_process_too(
    task: str, mode: str, ranks: int, mesh: str, tmp_path: Path
) -> None:
    common = {"task": task, "steps": "10", "eval_steps": "0", "precision": "fp64"}
    expected = run_ranks(1, tmp_path / "single", mode="single", **common)
    settings = {"mode": mode, "mesh": mesh, "micro_batch": "4"}
    events = run_ranks(ranks, tmp_path / mode, **common, **settings)
    for name in ("loss", "grad_norm"):
        one, other = (
            torch.tensor([event[name] for event in run if event["event"] == "step"])
            for run in (expected, events)
        )
        assert len(one) == 10
        assert worst(one, other) < 1e-8
    evaluated = [[e["loss"] for e in run if e["event"] == "eval"] for run in (expected, events)]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-8)


@pytest.mark.parametrize("micro", ["16", "4"])
def test_two_ranks_and_one_give_the_same_curve_in_float32(
    micro: str, single: Any, tmp_path: Path
) -> None:
    compare(single, tmp_path, "sgd", 2, mode="ddp", micro_batch=micro)


def _elastic() -> None:
    os.environ["PET_NNODES"] = "1:8"


@pytest.mark.parametrize(
    ("mode", "ranks", "micro"), [("ddp", 3, ""), ("ddp", 3, "4"), ("fsdp", 3, "4")]
)
def test_uneven_shares_of_the_batch_equal_one_process_too(
    mode: str, ranks: int, micro: str, single: Any, tmp_path: Path
) -> None:
    compare(single, tmp_path, "adamw64", ranks, _elastic, mode=mode, micro_batch=micro)


def compare(
    single: Any,
    tmp_path: Path,
    optimizer: str,
    ranks: int,
    before: Callable[[], None] | None = None,
    **settings: str,
) -> None:
    folder, expected = single[optimizer]
    events = run_ranks(ranks, tmp_path, before, **settings, **(COMMON | OPTIMIZERS[optimizer]))
    tolerance = TOLERANCE[optimizer]
    assert worst(curve(expected, "loss"), curve(events, "loss")) < tolerance
    assert worst(curve(expected, "grad_norm"), curve(events, "grad_norm")) < 10 * tolerance
    mine = weights(tmp_path)
    for name, tensor in weights(folder).items():
        assert (tensor - mine[name]).norm() < 10 * tolerance * tensor.norm(), name


def _average_nothing() -> None:
    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel.require_backward_grad_sync = property(  # type: ignore[assignment]
        lambda _: False, lambda _, __: None
    )


def _read_the_same_share() -> None:
    from trainer import loop

    original = loop.training_shares
    loop.training_shares = lambda order, batches, _, *, start: original(  # type: ignore[assignment]
        order, batches, 0, start=start
    )


@pytest.mark.parametrize("fault", [_average_nothing, _read_the_same_share])
def test_a_planted_fault_is_seen(fault: Any, single: Any, tmp_path: Path) -> None:
    _, expected = single["sgd"]
    events = run_ranks(2, tmp_path, before=fault, mode="ddp", **(COMMON | OPTIMIZERS["sgd"]))
    assert worst(curve(expected, "loss"), curve(events, "loss")) > 1e-3


def test_a_checkpoint_goes_on_under_any_mode_and_world(tmp_path: Path) -> None:
    common = OPTIMIZERS["adamw64"] | {"schedule": "constant"}
    whole = run_ranks(1, tmp_path / "whole", mode="single", **COMMON, **common)
    legs = [
        (2, "ddp", "", 4),
        (4, "fsdp", "", 8),
        (1, "single", "", 12),
        (4, "ddp-zero1", "", 16),
    ]
    for ranks, mode, mesh, steps in [*legs, (4, "hsdp", "dp_replicate=2,dp_shard=2", STEPS)]:
        settings = COMMON | common | {"steps": str(steps), "mesh": mesh, "mode": mode}
        events = run_ranks(ranks, tmp_path / "parts", **settings)
    assert [e["step"] for e in events if e.get("action") == "resumed"] == [4, 8, 12, 16]
    assert worst(curve(whole, "loss"), curve(events, "loss")) < TOLERANCE["adamw64"]


def test_resuming_with_the_same_world_is_exact(tmp_path: Path) -> None:
    schedule = {"schedule": "constant"}
    run_ranks(2, tmp_path / "whole", mode="ddp", **COMMON, **schedule)
    run_ranks(2, tmp_path / "parts", mode="ddp", **(COMMON | schedule | {"steps": "7"}))
    run_ranks(2, tmp_path / "parts", mode="ddp", **COMMON, **schedule)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)
