"""What may be set beside the mode: each option changes what it says, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.test_parity import curve, weights, worst
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

COMMON = {"steps": "30", "eval_steps": "0", "checkpoint_steps": "0", "warmup_steps": "4"}
DIGITS = COMMON | {"task": "digits", "precision": "fp64"}
NORMED = COMMON | {"task": "tests.parity.tasks:Normed", "precision": "fp64"}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(1, tmp_path_factory.mktemp("digits"), mode="single", **DIGITS)


# What a hook leaves of a gradient of order 1: eleven, eight, or few bits.
HOOKS = {"fp16": (1e-8, 2e-3), "bf16": (1e-6, 2e-2), "powersgd": (1e-5, 0.2)}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_communication_hook_rounds_the_gradients_and_no_more(
    hook: str, digits: list[dict[str, Any]], tmp_path: Path
) -> None:
    events = run_ranks(2, tmp_path, mode="ddp", comm_hook=hook, micro_batch="8", **DIGITS)
    difference = worst(curve(digits, "loss"), curve(events, "loss"))
    least, most = HOOKS[hook]
    assert least < difference < most


@pytest.mark.parametrize(
    "options",
    [{"bucket_mb": "0.01", "micro_batch": "8"}, {"static_graph": "true"}],
    ids=["bucket", "static"],
)
def test_what_only_saves_time_changes_no_result(
    options: dict[str, str], digits: list[dict[str, Any]], tmp_path: Path
) -> None:
    events = run_ranks(2, tmp_path, mode="ddp", **DIGITS, **options)
    assert worst(curve(digits, "loss"), curve(events, "loss")) < 1e-10


@pytest.mark.parametrize(
    ("mode", "ranks", "mesh"),
    [("ddp", 2, ""), ("fsdp", 2, ""), ("hsdp", 4, "dp_replicate=2,dp_shard=2")],
)
def test_synchronised_batchnorm_sees_the_global_batch(
    mode: str, ranks: int, mesh: str, tmp_path: Path
) -> None:
    settings = NORMED | {"mode": mode, "mesh": mesh}
    expected = run_ranks(1, tmp_path / "single", **(NORMED | {"mode": "single"}))
    synced = run_ranks(ranks, tmp_path / "synced", sync_batchnorm="true", **settings)
    assert worst(curve(expected, "loss"), curve(synced, "loss")) < 1e-9
    one, other = weights(tmp_path / "single"), weights(tmp_path / "synced")
    assert all(torch.allclose(one[name], other[name], rtol=1e-8) for name in one)


def test_without_it_each_rank_normalises_by_its_own_samples(tmp_path: Path) -> None:
    expected = run_ranks(1, tmp_path / "single", mode="single", **NORMED)
    events = run_ranks(2, tmp_path / "ddp", mode="ddp", **NORMED)
    assert worst(curve(expected, "loss"), curve(events, "loss")) > 1e-4


@pytest.mark.parametrize("mode", ["single", "fsdp"])
def test_half_precision_with_loss_scaling_comes_close_to_float32(mode: str, tmp_path: Path) -> None:
    settings = COMMON | {"task": "digits", "mode": mode}
    ranks = 1 if mode == "single" else 2
    full = run_ranks(ranks, tmp_path / "fp32", **settings)
    half = run_ranks(ranks, tmp_path / "fp16", precision="fp16", **settings)
    assert 1e-6 < worst(curve(full, "loss"), curve(half, "loss")) < 0.05
    assert worst(curve(full, "grad_norm"), curve(half, "grad_norm")) < 0.2


REFUSED = [
    (1, {"precision": "tf32"}, "TRAINER_PRECISION='tf32': cpu has no TF32; fp32 would do"),
    (
        2,
        {"static_graph": "true", "micro_batch": "8"},
        (
            "TRAINER_STATIC_GRAPH=true: does not go with gradients that are accumulated before they are "
            "sent; without TRAINER_MICRO_BATCH=8 it does"
        ),
    ),
]


@pytest.mark.parametrize(("ranks", "settings", "message"), REFUSED, ids=lambda v: str(v)[:30])
def test_what_cannot_be_is_refused_by_name(
    ranks: int, settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    events = run_ranks(ranks, tmp_path, code=64, **settings)
    assert events[-1]["message"] == message
