"""What a task decides by itself holds in every mode: its groups, optimiser, schedule and metrics."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.compare import curve, differences, worst
from tests.parity.conftest import Once
from tests.parity.own_tasks import first_weights
from tests.parity.test_dry_run import dry_run
from tests.ranks import run_ranks, weights
from trainer.export import export

pytestmark = pytest.mark.slow

COMMON = {"steps": "20", "precision": "fp64", "lr": "0.01", "weight_decay": "0.01"}
OWN = "tests.parity.own_tasks:"
ODD = "tests.parity.odd_models:"
METRICS = ("accuracy", "top3", "f1_of_zero")

MODES: list[tuple[str, int, dict[str, str]]] = [
    ("mp", 1, {}),
    ("ddp", 2, {}),
    ("ddp-zero1", 2, {}),
    ("fsdp", 2, {"micro_batch": "8"}),
    ("pp", 2, {"micro_batch": "8"}),
    ("hsdp", 4, {"mesh": "dp_replicate=2,dp_shard=2"}),
]


@pytest.mark.parametrize("task", ["Grouped", "Updated"])
@pytest.mark.parametrize(("mode", "ranks", "settings"), MODES, ids=[mode[0] for mode in MODES])
def test_groups_optimiser_schedule_and_metrics_are_those_of_one_process(
    task: str, mode: str, ranks: int, settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    single = once(task=OWN + task, mode="single", **COMMON)
    events = run_ranks(ranks, tmp_path, task=OWN + task, mode=mode, **COMMON, **settings)
    apart = differences(single, (tmp_path, events))
    assert max(apart.values()) < 1e-9, apart
    last = [[e for e in run if e["event"] == "eval"][-1] for run in (single[1], events)]
    assert [last[0][name] for name in METRICS] == [last[1][name] for name in METRICS]


@pytest.mark.parametrize(("mode", "ranks", "settings"), MODES, ids=[mode[0] for mode in MODES])
def test_complex_buffers_stay_complex(
    mode: str, ranks: int, settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    by_real = once(task=f"{OWN}TurnedByReal", mode="single", **COMMON)
    more = settings | ({"fingerprint_steps": "5", "ema_decay": "0.9"} if mode == "ddp" else {})
    events = run_ranks(ranks, tmp_path, task=f"{OWN}TurnedByComplex", mode=mode, **COMMON, **more)
    assert worst(curve(by_real[1], "loss"), curve(events, "loss")) < 1e-9


@pytest.mark.parametrize("task", [f"{OWN}Masked", f"{ODD}Odd"])
@pytest.mark.parametrize(("mode", "ranks", "settings"), MODES, ids=[mode[0] for mode in MODES])
def test_layers_that_keep_and_share_tensors_train_as_in_one_process(
    task: str, mode: str, ranks: int, settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    """Operations and stages' costs are computed before it, with tensors that have no values."""
    single = once(task=task, mode="single", **COMMON)
    events = run_ranks(ranks, tmp_path, task=task, mode=mode, **COMMON, **settings)
    assert max(differences(single, (tmp_path, events)).values()) < 1e-9


@pytest.mark.parametrize(
    ("mode", "ranks", "settings"),
    [
        ("ddp", 2, {}),
        ("ddp-zero1", 2, {}),
        ("fsdp", 2, {}),
        ("hsdp", 4, {"mesh": "dp_replicate=2,dp_shard=2"}),
        ("pp", 4, {"mesh": "pp=2,dp_replicate=2"}),
    ],
)
def test_an_optimizer_that_draws_draws_the_same_on_each_replica(
    mode: str, ranks: int, settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    """Where each rank has a part of the weights, the noise is not that of one process."""
    common = COMMON | {"task": f"{OWN}Noisy"}
    single = once(mode="single", **common)
    checked = settings | {"fingerprint_steps": "1", "mode": mode}
    events = run_ranks(ranks, tmp_path, **common, **checked)
    is_same = worst(curve(single[1], "loss"), curve(events, "loss")) < 1e-9
    assert is_same == (mode == "ddp")


@pytest.mark.parametrize("task", ["Hooked", "HookedAfter", "Clamped"])
@pytest.mark.parametrize(("mode", "ranks"), [("ddp", 2), ("ddp-zero1", 2)])
def test_changed_gradients_and_weights_are_those_of_one_process(
    task: str, mode: str, ranks: int, once: Once, tmp_path: Path
) -> None:
    single = once(task=ODD + task, mode="single", **COMMON)
    events = run_ranks(ranks, tmp_path, task=ODD + task, mode=mode, **COMMON)
    assert max(differences(single, (tmp_path, events)).values()) < 1e-9
    plain = once(task="synthetic", mode="single", **COMMON)
    assert worst(curve(plain[1], "loss"), curve(events, "loss")) > 1e-6


@pytest.mark.parametrize(("mode", "ranks"), [("single", 1), ("ddp", 2), ("ddp-zero1", 2)])
def test_sparse_gradients_train_as_dense_ones(
    mode: str, ranks: int, once: Once, tmp_path: Path
) -> None:
    settings = COMMON | {"weight_decay": "0"}  # which needs the whole weight
    dense = once(task=f"{OWN}DenseEmbedding", mode="single", **settings)
    events = run_ranks(ranks, tmp_path, task=f"{OWN}SparseEmbedding", mode=mode, **settings)
    assert max(differences(dense, (tmp_path, events)).values()) < 1e-9


EXPERTS = COMMON | {"task": f"{OWN}Experts", "global_batch": "16"}


@pytest.mark.parametrize("mode", ["ddp", "ddp-zero1"])
@pytest.mark.parametrize("micro_batch", ["4", "2"])
def test_ranks_may_use_different_experts_in_a_step(
    mode: str, micro_batch: str, once: Once, tmp_path: Path
) -> None:
    single = once(mode="single", **EXPERTS)
    more = {"mode": mode, "micro_batch": micro_batch, "find_unused_parameters": "true"}
    events = run_ranks(4, tmp_path, **EXPERTS, **more)
    assert max(differences(single, (tmp_path, events)).values()) < 1e-9


def test_a_parameter_that_only_one_rank_uses_is_named_and_no_rank_waits(start: Any) -> None:
    """The other rank ends before it waits for the losses of the first, which waits for its gradient."""
    settings = {f"TRAINER_{name.upper()}": value for name, value in COMMON.items()}
    settings |= {"TRAINER_TASK": f"{OWN}UsedByOneRank", "TRAINER_MODE": "ddp"}
    settings |= {"TRAINER_LOG_STEPS": "1", "TRAINER_COLLECTIVE_TIMEOUT": "30"}
    ended = start("-m", "trainer.launch", PET_NPROC_PER_NODE="2", **settings).end()
    assert ended.code == 64
    assert "no gradient for 0.weight, 0.bias: with ddp the loss of every step must" in ended.stderr
    assert "set TRAINER_FIND_UNUSED_PARAMETERS=true" in ended.stderr


def test_whole_numbers_are_summed_exactly(once: Once) -> None:
    events = once(task=f"{OWN}Counted", mode="single", **COMMON | {"precision": "fp32"})[1]
    assert [event["length"] for event in events if event["event"] == "eval"] == [2**24 + 1]


@pytest.mark.parametrize(
    "settings", [{}, {"activation_checkpointing": "true"}], ids=["", "recomputed"]
)
def test_blocks_that_a_task_names_are_sharded_and_recomputed(
    settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    single = once(task=f"{OWN}OneBlock", mode="single", **COMMON)
    fsdp = {"mode": "fsdp", "task": f"{OWN}SixBlocks", **settings}
    events = run_ranks(2, tmp_path / "run", **COMMON, **fsdp)
    apart = differences(single, (tmp_path / "run", events))
    assert max(apart.values()) < 1e-9, apart
    needs = {
        task: dry_run(8, tmp_path / task, **fsdp | {"task": OWN + task, "global_batch": "8"})[0]
        for task in ("OneBlock", "SixBlocks")
    }
    assert needs["SixBlocks"]["parameters"] == needs["OneBlock"]["parameters"]
    assert needs["SixBlocks"]["peak"] < 0.7 * needs["OneBlock"]["peak"], needs


def test_blocks_that_stay_gathered_in_a_stage_train_as_in_one_process(
    once: Once, tmp_path: Path
) -> None:
    single = once(task=f"{OWN}OneBlock", mode="single", **COMMON)
    settings = COMMON | {"mode": "pp", "mesh": "pp=2,dp_shard=2", "micro_batch": "8"}
    events = run_ranks(4, tmp_path, task=f"{OWN}SixBlocks", **settings)
    assert max(differences(single, (tmp_path, events)).values()) < 1e-9


def test_the_two_tasks_and_the_plain_one_train_apart(once: Once) -> None:
    tasks = ("synthetic", OWN + "Grouped", OWN + "Updated")
    curves = [curve(once(task=task, mode="single", **COMMON)[1], "loss") for task in tasks]
    assert worst(curves[0], curves[1]) > 1e-3
    assert worst(curves[1], curves[2]) > 1e-3


def test_a_groups_rate_and_the_schedule_hold(tmp_path: Path) -> None:
    task = f"{OWN}BiasesStay"
    events = run_ranks(1, tmp_path / "all", task=task, mode="single", **COMMON)
    few = run_ranks(1, tmp_path / "few", task=task, mode="single", **(COMMON | {"steps": "5"}))
    assert [e["lr"] for e in events if e["event"] == "step"] == [0.01] * 5 + [0.0] * 15
    after, after_five = weights(tmp_path / "all"), weights(tmp_path / "few")
    first = first_weights()
    assert few[-1]["event"] == "summary"
    for name, tensor in after.items():
        assert tensor.equal(after_five[name])
        assert torch.equal(tensor, first[name].double()) == name.endswith("bias"), name


def test_metrics_are_counted_over_the_test_set(once: Once) -> None:
    (evaluation,) = [
        event
        for event in once(task=f"{OWN}Grouped", mode="single", **COMMON)[1]
        if event["event"] == "eval"
    ]
    assert evaluation["metric"] == "accuracy"
    assert evaluation["accuracy"] < evaluation["top3"] < 1
    assert 0 < evaluation["f1_of_zero"] < 1
    # Of 1,024 samples; the divisor of an F1 is another one.
    assert math.isclose(evaluation["top3"] * 1024 % 1, 0)
    assert not math.isclose(evaluation["f1_of_zero"] * 1024 % 1, 0)


@pytest.mark.parametrize(("mode", "ranks"), [("single", 1), ("ddp", 2), ("pp", 2)])
def test_perplexity_is_over_all_tokens_and_no_mean_of_batches(
    mode: str, ranks: int, tmp_path: Path
) -> None:
    settings = COMMON | {"task": "tests.parity.tasks:Gpt", "steps": "2", "global_batch": "16"}
    events = run_ranks(ranks, tmp_path, mode=mode, **settings)  # 78 windows: the last are padded
    (evaluation,) = [event for event in events if event["event"] == "eval"]
    assert evaluation["samples"] % 16
    assert math.isclose(evaluation["perplexity"], math.exp(evaluation["loss"]), rel_tol=1e-6)


@pytest.mark.parametrize(
    ("task", "mode", "ranks"),
    [
        *(
            (task, mode, ranks)
            for task in ("Grouped", "Updated", "TensorRate", "CountsSteps")
            for mode, ranks in (("single", 1), ("ddp-zero1", 2), ("fsdp", 2), ("pp", 2))
        ),
        *(("NeverUsed", mode, ranks) for mode, ranks in (("single", 1), ("fsdp", 2), ("pp", 2))),
        ("Followed", "single", 1),
        ("Followed", "ddp", 2),
    ],
)
def test_a_resumed_run_goes_on_as_if_it_had_not_ended(
    task: str, mode: str, ranks: int, once: Once, tmp_path: Path
) -> None:
    settings = COMMON | {"task": OWN + task, "eval_steps": "0", "mode": mode, "micro_batch": "8"}
    whole = curve(run_ranks(ranks, tmp_path / "whole", **settings), "loss")
    half = {"checkpoint_steps": "10", "checkpoint_keep_every": "10"}
    run_ranks(ranks, tmp_path / "half", **(settings | half))
    again = {"resume": str(tmp_path / "half" / "checkpoints" / "step-00000010")}
    events = run_ranks(ranks, tmp_path / "again", **(settings | again))
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses == whole[10:].tolist()


FREEZE = COMMON | {"task": f"{OWN}Grouped", "freeze": "0.*,2.bias"}


@pytest.mark.parametrize(("mode", "ranks", "settings"), MODES, ids=[mode[0] for mode in MODES])
def test_frozen_parameters_stay_in_every_mode(
    mode: str, ranks: int, settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    single = once(mode="single", **FREEZE)
    events = run_ranks(ranks, tmp_path / "whole", mode=mode, **FREEZE, **settings)
    assert max(differences(single, (tmp_path / "whole", events)).values()) < 1e-9
    first, after = first_weights(), weights(tmp_path / "whole")
    stayed = {name for name, tensor in after.items() if tensor.equal(first[name].double())}
    assert stayed == {"0.weight", "0.bias", "2.bias"}
    # And half of it resumed.
    half = FREEZE | settings | {"mode": mode, "checkpoint_steps": "10"}
    half |= {"checkpoint_keep_every": "10", "eval_steps": "0"}
    run_ranks(ranks, tmp_path / "half", **half)
    again = {"resume": str(tmp_path / "half" / "checkpoints" / "step-00000010")}
    resumed = run_ranks(ranks, tmp_path / "again", **(half | again))
    losses = [event["loss"] for event in resumed if event["event"] == "step"]
    assert losses == curve(events, "loss")[10:].tolist()


def test_a_stage_without_trained_parameters_takes_a_loss_scale(tmp_path: Path) -> None:
    settings = FREEZE | {"freeze": "0.*", "mode": "pp", "precision": "fp16", "steps": "2"}
    run_ranks(2, tmp_path, micro_batch="8", **settings)


def test_a_run_begins_with_the_weights_of_a_file(tmp_path: Path) -> None:
    trained = run_ranks(1, tmp_path / "before", task=f"{OWN}Grouped", mode="single", **COMMON)
    (before,) = [event for event in trained if event["event"] == "eval"]
    (checkpoint,) = (tmp_path / "before" / "checkpoints").glob("step-*20")
    file = tmp_path / "weights.safetensors"
    export(str(checkpoint), file)
    settings = COMMON | {"task": f"{OWN}Grouped", "init": str(file), "steps": "0"}
    for mode, ranks in (("single", 1), ("fsdp", 2), ("pp", 2)):
        more = {"micro_batch": "8"} if mode == "pp" else {}
        events = run_ranks(ranks, tmp_path / mode, mode=mode, **settings, **more)
        (evaluation,) = [event for event in events if event["event"] == "eval"]
        assert math.isclose(evaluation["loss"], before["loss"], rel_tol=1e-12)


@pytest.mark.parametrize(
    ("mode", "ranks", "settings"),
    [
        *(one for one in MODES if one[0] not in ("mp", "pp")),
        ("fsdp", 2, {"activation_checkpointing": "true", "micro_batch": "4"}),
    ],
)
def test_a_model_of_torchvision_needs_no_more_code(
    mode: str, ranks: int, settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    """In float32 AdamW lets the biases of its keys drift apart; tests/parity/table.py says why."""
    vit = COMMON | {"task": "tests.parity.tasks:Vit", "optimizer": "adamw", "global_batch": "16"}
    single = once(mode="single", **vit)
    events = run_ranks(ranks, tmp_path, mode=mode, **(vit | settings))
    assert max(differences(single, (tmp_path, events)).values()) < 1e-8


def test_hogwild_and_localsgd_take_them(tmp_path: Path) -> None:
    for mode, ranks, more in (
        ("hogwild", 1, {"processes": "2"}),
        ("localsgd", 2, {"local_steps": "4"}),
    ):
        settings = COMMON | {"task": f"{OWN}Updated", "mode": mode, "lr": "0.002"} | more
        events = run_ranks(ranks, tmp_path / mode, **settings)
        losses = curve(events, "loss")
        assert losses[-5:].mean() < losses[:5].mean()
