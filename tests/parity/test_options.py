"""Options that go with any mode: each changes what its description names, and nothing else."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.faults.tasks import planted
from tests.parity.batchnorm import sync_batchnorm_on_cpu
from tests.parity.compare import curve, worst
from tests.parity.conftest import Once
from tests.parity.table import WHOLE
from tests.ranks import run_ranks, weights
from trainer.checkpoint.find import complete
from trainer.engine.run import Run

pytestmark = pytest.mark.slow

COMMON = {"steps": "30", "eval_steps": "0", "checkpoint_steps": "0", "warmup_steps": "4"}
DIGITS = COMMON | {"task": "digits", "precision": "fp64"}
NORMED = COMMON | {"task": "tests.parity.tasks:Normed", "precision": "fp64"}


# What a hook leaves of a gradient of order 1: eleven, eight, or few bits.
HOOKS = {"fp16": (1e-8, 2e-3), "bf16": (1e-6, 2e-2), "powersgd": (1e-5, 0.2)}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_communication_hook_rounds_the_gradients_and_no_more(
    hook: str, once: Once, tmp_path: Path
) -> None:
    events = run_ranks(2, tmp_path, mode="ddp", comm_hook=hook, micro_batch="8", **DIGITS)
    difference = worst(curve(once(mode="single", **DIGITS)[1], "loss"), curve(events, "loss"))
    least, most = HOOKS[hook]
    assert least < difference < most


@pytest.mark.parametrize(
    ("mode", "ranks", "mesh"),
    [
        ("ddp", 2, ""),
        ("fsdp", 2, ""),
        ("hsdp", 4, "dp_replicate=2,dp_shard=2"),
        ("pp", 4, "pp=2,dp_replicate=2"),
    ],
)
def test_synchronised_batchnorm_sees_the_global_batch(
    mode: str, ranks: int, mesh: str, once: Once, tmp_path: Path
) -> None:
    settings = NORMED | {"mode": mode, "mesh": mesh}
    if mode == "pp":  # whose micro-batches would otherwise be smaller
        settings |= {"pipeline_schedule": "gpipe", "micro_batch": "16"}
    folder, expected = once(mode="single", **NORMED)
    settings |= {"sync_batchnorm": "true"}
    synced = run_ranks(ranks, tmp_path, sync_batchnorm_on_cpu, **settings)
    assert worst(curve(expected, "loss"), curve(synced, "loss")) < 1e-9
    one, other = weights(folder), weights(tmp_path)
    assert all(torch.allclose(one[name], other[name], rtol=1e-8) for name in one)


def test_without_it_each_rank_normalises_by_its_own_samples(once: Once, tmp_path: Path) -> None:
    events = run_ranks(2, tmp_path, mode="ddp", **NORMED)
    assert worst(curve(once(mode="single", **NORMED)[1], "loss"), curve(events, "loss")) > 1e-4


@pytest.mark.parametrize(
    ("mode", "ranks", "task"),
    [
        ("single", 1, "digits"),
        ("fsdp", 2, "tests.parity.tasks:Normed"),
        ("mp", 1, "digits"),
        ("pp", 2, "digits"),
        ("tp", 2, "tests.parity.tasks:Gpt"),
    ],
)
def test_half_precision_with_loss_scaling_comes_close_to_float32(
    mode: str, ranks: int, task: str, tmp_path: Path
) -> None:
    settings = COMMON | {"task": task, "mode": mode, "steps": "20"}
    full = run_ranks(ranks, tmp_path / "fp32", **settings)
    half = run_ranks(ranks, tmp_path / "fp16", precision="fp16", **settings)
    assert 1e-6 < worst(curve(full, "loss"), curve(half, "loss")) < 0.05
    assert worst(curve(full, "grad_norm"), curve(half, "grad_norm")) < 0.2
    assert half[-1]["peak_memory"] > 2**26  # importing torch alone takes more


@pytest.mark.parametrize(
    ("mode", "ranks", "options"),
    [
        ("single", 1, {}),
        ("single", 1, {"compile": "step"}),
        ("dp-balanced", 1, {}),
        ("mp", 1, {}),
        ("fsdp", 2, {}),
        ("pp", 2, {}),
        ("tp", 2, {"task": "tests.parity.option_tasks:Float32OnlyText"}),
    ],
)
def test_losses_and_scores_are_of_float32_outputs(
    mode: str, ranks: int, options: dict[str, str], tmp_path: Path
) -> None:
    settings = COMMON | {"mode": mode, "precision": "bf16", "steps": "1", "eval_steps": "1"}
    settings |= {"task": "tests.parity.option_tasks:Float32Only"} | options
    run_ranks(ranks, tmp_path, **settings)


FEW = COMMON | {"steps": "6", "precision": "fp64"}


@pytest.mark.parametrize(
    ("mode", "ranks", "options"),
    [
        ("ddp", 2, {"bucket_mb": "0.01", "micro_batch": "8"}),
        ("ddp", 2, {"static_graph": "true"}),
        ("single", 1, {"activation_checkpointing": "true"}),
        ("ddp", 2, {"activation_checkpointing": "true", "micro_batch": "8"}),
        ("fsdp", 2, {"activation_checkpointing": "true", "micro_batch": "8"}),
        ("fsdp", 2, {"channels_last": "true", "cpu_offload": "true"}),
    ],
)
def test_what_only_saves_time_or_memory_changes_no_result(
    mode: str, ranks: int, options: dict[str, str], once: Once, tmp_path: Path
) -> None:
    events = run_ranks(ranks, tmp_path, mode=mode, **DIGITS, **options)
    assert worst(curve(once(mode="single", **DIGITS)[1], "loss"), curve(events, "loss")) < 1e-10


# Modes whose ranks have a part of the model: an option must apply to the parts together.
PARTS: dict[str, tuple[int, dict[str, str]]] = {
    "mp": (1, {"mode": "mp"}),
    "pp": (2, {"mode": "pp"}),
    "pp, zbv": (2, {"mode": "pp", "pipeline_schedule": "zbv"}),
    "tp": (2, {"mode": "tp"}),
    "fsdp x tp": (4, {"mode": "tp", "mesh": "dp_shard=2,tp=2"}),
    "pp x ddp": (4, {"mode": "pp", "mesh": "pp=2,dp_replicate=2"}),
    # what is gathered for an evaluation, and not freed after it, are averaged weights
    "pp x fsdp": (4, {"mode": "pp", "mesh": "pp=2,dp_shard=2"}),
    "fsdp, not freed": (2, {"mode": "fsdp", "reshard": "false"}),
}
GPT = FEW | {"task": "tests.parity.tasks:Gpt", "global_batch": "8", "ema_decay": "0.9"}
GPT |= {"eval_steps": "3"}  # and go on with the weights themselves
GPT |= {"optimizer": "adamw", "lr": "0.001"}  # other tasks have other defaults


def losses(events: list[dict[str, Any]]) -> list[float]:
    found = [event["loss"] for event in events if event["event"] == "step"]
    assert len(found) == int(FEW["steps"])
    return found


@pytest.mark.parametrize("name", PARTS)
def test_modes_that_hold_a_part_take_all_of_it(name: str, once: Once, tmp_path: Path) -> None:
    """Averaged weights, recomputed blocks, fingerprints and accumulation, all at once."""
    ranks, mode = PARTS[name]
    options = {"activation_checkpointing": "true", "fingerprint_steps": "2", "micro_batch": "2"}
    events = run_ranks(ranks, tmp_path, **GPT, **mode, **options)
    averaged = once(mode="single", **GPT)[1]
    assert losses(averaged) == pytest.approx(losses(events), rel=1e-8)
    assert evaluated(averaged) == pytest.approx(evaluated(events), rel=1e-8)


# The compiler takes a minute for each; the ResNet's blocks differ in width.
DEAR = [("Gpt", "tp", 2), ("ResNet", "ddp", 2), ("ResNet", "fsdp", 2)] if WHOLE else []


@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler"
)
@pytest.mark.parametrize(
    ("task", "mode", "ranks"),
    [
        ("Gpt", "single", 1),
        ("Gpt", "ddp", 2),
        ("Gpt", "fsdp", 2),
        ("Gpt", "pp", 2),
        *DEAR,
    ],
)
def test_compiled_blocks_give_the_same_results(
    task: str, mode: str, ranks: int, once: Once, tmp_path: Path
) -> None:
    common = FEW | {"task": f"tests.parity.tasks:{task}"}
    more = {"compile": "true", "activation_checkpointing": "false" if mode == "tp" else "true"}
    folder, expected = once(mode="single", **common)
    events = run_ranks(ranks, tmp_path, mode=mode, **common, **more)
    assert losses(expected) == pytest.approx(losses(events), rel=1e-8)
    assert weights(folder).keys() == weights(tmp_path).keys()


def test_recomputing_leaves_the_running_statistics_alone(once: Once, tmp_path: Path) -> None:
    folder, _ = once(mode="single", **NORMED)
    run_ranks(1, tmp_path, mode="single", activation_checkpointing="true", **NORMED)
    one, other = weights(folder), weights(tmp_path)
    assert all(torch.allclose(one[name], other[name], rtol=1e-10) for name in one)


def evaluated(events: list[dict[str, Any]]) -> float:
    return float([event["loss"] for event in events if event["event"] == "eval"][-1])


AVERAGED = COMMON | {"task": "digits", "precision": "fp64", "ema_decay": "0.9", "steps": "20"}


@pytest.mark.parametrize(
    ("mode", "ranks", "mesh"),
    [
        ("ddp", 2, ""),
        ("ddp-zero1", 2, ""),
        ("fsdp", 2, ""),
        ("hsdp", 4, "dp_replicate=2,dp_shard=2"),
    ],
)
def test_averaged_weights_are_the_same_in_every_mode(
    mode: str, ranks: int, mesh: str, once: Once, tmp_path: Path
) -> None:
    settings = AVERAGED | {"mode": mode, "mesh": mesh, "fingerprint_steps": "1"}
    _, expected = once(**(AVERAGED | {"mode": "single"}))
    _, plain = once(**(AVERAGED | {"mode": "single", "ema_decay": "0"}))
    run_ranks(ranks, tmp_path / "parts", **(settings | {"steps": "7", "schedule": "constant"}))
    events = run_ranks(ranks, tmp_path / mode, **settings)
    assert evaluated(expected) == pytest.approx(evaluated(events), rel=1e-9)
    assert abs(evaluated(expected) / evaluated(plain) - 1) > 1e-3


@pytest.mark.parametrize("mode", ["ddp", "fsdp", "pp"])
def test_averaged_statistics_are_those_of_one_rank_as_in_the_checkpoint(
    mode: str, tmp_path: Path
) -> None:
    settings = AVERAGED | {"task": "tests.parity.option_tasks:Normed", "mode": mode, "steps": "5"}
    settings["mesh"] = "pp=2,dp_replicate=2" if mode == "pp" else ""
    before = evaluated(run_ranks(4, tmp_path, **settings))
    again = run_ranks(4, tmp_path, **settings)  # loads the checkpoint, and only evaluates
    assert len([event for event in again if event["event"] == "eval"]) == 2
    assert evaluated(again) == pytest.approx(before, rel=1e-12)


def test_the_average_goes_on_over_a_resume(tmp_path: Path) -> None:
    settings = AVERAGED | {"mode": "fsdp", "schedule": "constant"}
    whole = run_ranks(2, tmp_path / "whole", **settings)
    run_ranks(2, tmp_path / "parts", **(settings | {"steps": "7"}))
    events = run_ranks(2, tmp_path / "parts", **settings)
    assert evaluated(whole) == evaluated(events)


def _corrupt_rank_1() -> None:
    from trainer.engine import loop

    original = loop.report_saved

    def corrupted(run: Run) -> None:
        if run.step == 4 and run.runtime.rank == 1:
            named = dict(run.strategy.module.named_parameters())
            weight = next(p for name, p in named.items() if name.endswith("fc1.weight"))
            local = weight.to_local() if isinstance(weight, DTensor) else weight
            local.data.view(-1)[3] *= 1 + 2**-20
        original(run)

    loop.report_saved = corrupted


@pytest.mark.parametrize(
    ("mode", "mesh", "who"),
    [
        ("ddp", "", "rank 1 differs from the 3 other ranks that hold it"),
        ("hsdp", "dp_replicate=2,dp_shard=2", "ranks 1, 3 do not agree, and there is no majority"),
    ],
)
def test_a_replica_that_is_not_one_any_more_is_named(
    mode: str, mesh: str, who: str, tmp_path: Path
) -> None:
    settings = COMMON | {"task": "digits", "mode": mode, "mesh": mesh, "fingerprint_steps": "5"}
    events = run_ranks(4, tmp_path, _corrupt_rank_1, code=70, **settings)
    message = events[-1]["message"]
    assert message.startswith("step 5: the replicas differ, first in fc1.weight: ")
    assert who in message


def _leave_the_weights_alone() -> None:
    from trainer.engine import build as model

    model._broadcast = lambda *_, **__: None  # noqa: SLF001  # the fault to be seen


@pytest.mark.parametrize(("before", "code"), [(None, 0), (_leave_the_weights_alone, 70)])
def test_ranks_begin_with_the_same_weights(before: Any, code: int, tmp_path: Path) -> None:
    """Fully_shard sends none by itself, so a task that draws weights without a seed would show it."""
    settings = COMMON | {"mode": "hsdp", "mesh": "dp_replicate=2,dp_shard=2", "steps": "2"}
    settings |= {"task": "tests.parity.option_tasks:Unseeded", "fingerprint_steps": "1"}
    events = run_ranks(4, tmp_path, before, code=code, **settings)
    assert code == 0 or "the replicas differ, first in 0.weight" in events[-1]["message"]


def test_the_loss_scale_is_in_the_checkpoint(tmp_path: Path) -> None:
    settings = COMMON | {"task": "digits", "mode": "single", "precision": "fp16"}
    settings |= {"schedule": "constant", "steps": "24"}
    plant = planted(NUMBERLESS="gradient:3")  # the scale is halved there
    numberless = settings | {"task": "tests.faults.tasks:Numberless"}
    whole = run_ranks(1, tmp_path / "whole", plant, **numberless)
    run_ranks(1, tmp_path / "parts", plant, **(numberless | {"steps": "7"}))
    later = planted(NUMBERLESS="gradient:1000")
    events = run_ranks(1, tmp_path / "parts", later, **numberless)
    assert curve(whole, "loss").tolist() == curve(events, "loss").tolist()
    assert whole[-1]["skipped_steps"] == 0  # the scale was to blame, not the training
    assert _scale(tmp_path / "whole") == _scale(tmp_path / "parts") == {"value": 2.0**15}


def _scale(folder: Path) -> dict[str, Any]:
    found = complete(str(max((folder / "checkpoints").glob("step-*"))))
    return {"value": found.manifest.values["extra.loss_scale.value"]}


@pytest.mark.parametrize("task", ["ShardedLoss", "ShardedByClasses"])
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_our_operator_takes_sharded_tensors(
    mode: str, task: str, once: Once, tmp_path: Path
) -> None:
    tasks = "tests.parity.option_tasks"
    _, expected = once(2, mode=mode, task=f"{tasks}:PlainLoss", **FEW)
    events = run_ranks(2, tmp_path, mode=mode, task=f"{tasks}:{task}", **FEW)
    assert losses(expected) == pytest.approx(losses(events), rel=1e-10)


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [
        (2, {"mode": "tp"}),
        (2, {"mode": "tp", "loss_parallel": "true"}),
        (4, {"mode": "tp", "mesh": "dp_shard=2,tp=2"}),
    ],
    ids=["tp", "tp, split logits", "fsdp x tp"],
)
def test_our_operator_is_right_in_a_model_that_is_split(
    ranks: int, mode: dict[str, str], once: Once, tmp_path: Path
) -> None:
    task = {"task": "tests.parity.option_tasks:OurText"}
    events = run_ranks(ranks, tmp_path, **(GPT | task | mode))
    averaged = once(mode="single", **GPT)[1]
    assert losses(averaged) == pytest.approx(losses(events), rel=1e-8)
