"""The plan's figures: what all nodes have together, GPU-hours, and what a rank will hold."""

import json
from typing import Any

import pytest

from k8s import launchers
from k8s.cli import estimate, report
from tests.rendering import job, planned, render
from trainer.config.modes import MODES


def gpus(**changes: Any) -> dict[str, Any]:
    resources = {"gpu": 8, "gpuMemory": "80Gi", "cpu": 32, "memory": "256Gi", "shm": "32Gi"}
    return job(nodes=4, resources=resources, trainer={"globalBatch": 64}, **changes)


def words(values: dict[str, Any], launcher: str = "job") -> dict[str, str]:
    rows = report.rows(
        planned(values, launcher), launchers.find(launcher), render(values, launcher)
    )
    return dict(rows)


def test_what_all_nodes_have_together() -> None:
    assert report.totals(planned(gpus())) == {
        "cpu": "128",
        "memory": "1Ti",
        "nvidia.com/gpu": "32",
        "shm": "128Gi",
    }
    assert "cpu 128, memory 1Ti" in words(gpus())["in all"]


@pytest.mark.parametrize(
    ("faults", "hours", "said"),
    [
        ({"deadline": 5400}, 48.0, "48.0 at the deadline"),
        ({}, None, "768 a day, no deadline"),
    ],
)
def test_gpu_hours(faults: dict[str, Any], hours: float | None, said: str) -> None:
    values = gpus(faults=faults)
    assert report.gpu_hours(planned(values)) == hours
    assert words(values)["GPU hours"] == said
    assert "GPU hours" not in words(job())


def test_how_fast_a_checkpoint_must_be_written_to_be_whole() -> None:
    values = gpus(faults={"gracePeriod": 20}) | {
        "trainer": {"task": "charlm-gpt", "globalBatch": 64}
    }
    held = estimate.of(planned(values))
    assert isinstance(held, estimate.Estimate)
    assert held.saved == held.parts["parameters"] + held.parts["optimizer"] > 2**20
    rate = estimate.in_binary(held.saved // 10)
    assert words(values)["to stop"].endswith(
        f"10 s to save a rank's {estimate.in_binary(held.saved)}, so at {rate}/s at least"
    )
    own = gpus() | {"trainer": {"task": "my.own:Task", "globalBatch": 64}}
    assert words(own)["to stop"] == "120 s, of which 110 s to save"


def test_a_rank_holds_less_when_it_is_sharded() -> None:
    def parts(mode: str) -> dict[str, int]:
        values = gpus() | {"trainer": {"globalBatch": 64, "mode": mode, "task": "charlm-gpt"}}
        found = estimate.of(planned(values))
        assert isinstance(found, estimate.Estimate)
        assert (found.device, found.total) == (80 * 2**30, sum(found.parts.values()))
        return found.parts

    whole, sharded = parts("ddp"), parts("fsdp")
    assert sharded["parameters"] < whole["parameters"] / 20
    assert whole["activations"] == sharded["activations"]


def test_more_than_the_device_has_is_a_warning() -> None:
    values = gpus()
    assert "more memory than" not in str(words(values))
    values["resources"]["gpuMemory"] = "64Ki"
    assert words(values)["warning"] == "more memory than the device has"


def test_on_a_cpu_the_ranks_share_what_is_beside_shared_memory() -> None:
    values = job(resources={"memory": "3Gi", "shm": "1Gi"}, procsPerNode=2)
    found = estimate.of(planned(values))
    assert isinstance(found, estimate.Estimate)
    assert found.device == 2**30


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"task": "my.module:Task"}, "not known for a task of your own"),
        (
            {"task": "charlm-lstm", "mode": "tp"},
            "there is none: the model of task charlm-lstm cannot be split over tp=2",
        ),
    ],
)
def test_what_cannot_be_known_is_said(trainer: dict[str, Any], said: str) -> None:
    values = job(nodes=2, trainer={"globalBatch": 64, **trainer})
    assert words(values)["rank's memory"].startswith(said)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_has_figures(mode: str) -> None:
    nodes = 1 if MODES[mode].axes == () else 4
    mesh = "dp_replicate=2,dp_shard=2" if mode == "hsdp" else ""
    values = job(nodes=nodes, procsPerNode=1)
    values["trainer"] = {"task": "charlm-gpt", "mode": mode, "mesh": mesh, "globalBatch": 64}
    found = estimate.of(planned(values))
    assert isinstance(found, estimate.Estimate), found
    assert min(found.parts[name] for name in ("parameters", "gradients", "activations")) > 0


def test_for_programs() -> None:
    rendered = render(gpus(faults={"deadline": 5400}), "job")
    (found,) = json.loads(report.json_of([(rendered.plan, rendered.launcher, rendered)]))
    assert found["gpu_hours"] == 48.0
    assert found["totals"]["nvidia.com/gpu"] == "32"
    assert found["estimate"]["device"] == 80 * 2**30
    assert found["settings"]["globalBatch"] == 64
