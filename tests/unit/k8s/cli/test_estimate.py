"""The plan's figures: resources of all nodes, GPU-hours, and the memory of a rank."""

import json
from pathlib import Path
from typing import Any

import pytest

from k8s import launchers
from k8s.cli import estimate, report
from k8s.cli.estimate import Estimate
from k8s.jobfile.validate import validate
from k8s.render import manifests
from k8s.render.payload import make_payload
from tests.rendering import job, planned, render
from trainer.config.exits import Exit, Fault
from trainer.plan.memory import DryRun, Need

MIB = 2**20
NEED = Need(0, 2 * MIB, 2 * MIB, 4 * MIB, 0, MIB, 10 * MIB, {})


def gpus(**changes: Any) -> dict[str, Any]:
    resources = {"gpu": 8, "gpuMemory": "80Gi", "cpu": 32, "memory": "256Gi", "shm": "32Gi"}
    return job(nodes=4, resources=resources, trainer={"globalBatch": 64}, **changes)


def shown(values: dict[str, Any], memory: Estimate | str = "not known") -> dict[str, str]:
    return dict(report.rows(render(values, "job"), memory))


def test_what_all_nodes_have_together() -> None:
    assert report.totals(planned(gpus())) == {
        "cpu": "128",
        "memory": "1Ti",
        "nvidia.com/gpu": "32",
        "shm": "128Gi",
    }
    assert "cpu 128, memory 1Ti" in shown(gpus())["in all"]


@pytest.mark.parametrize(
    ("faults", "hours", "text"),
    [
        ({"deadline": 5400}, 48.0, "48.0 at the deadline"),
        ({}, None, "768 a day, no deadline"),
    ],
)
def test_gpu_hours(faults: dict[str, Any], hours: float | None, text: str) -> None:
    values = gpus(faults=faults)
    assert report.gpu_hours(planned(values)) == hours
    assert shown(values)["GPU hours"] == text
    assert "GPU hours" not in shown(job())


def test_how_fast_a_checkpoint_must_be_written_to_be_complete() -> None:
    values = gpus(faults={"gracePeriod": 20})
    memory = Estimate("ddp", "as set", NEED, None)
    assert memory.saved == NEED.parameters + NEED.optimizer
    expected = "10 s to save a rank's 6.0 MiB, which needs 614.4 KiB/s or more"
    assert shown(values, memory)["to stop"].endswith(expected)
    assert shown(gpus())["to stop"] == "120 s, of which 110 s to save"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trainer": {"task": "mine:Task"}}, "mine:Task: must be in the image, or in a folder"),
        ({"trainer": {"task": "mine:Task"}, "code": {"git": "https://h/a", "revision": "b"}}, ""),
        ({"trainer": {"task": "tokens"}}, ""),
        ({"run": {"command": ["true"]}}, ""),
    ],
)
def test_a_task_of_ones_own_must_be_brought(changes: dict[str, Any], says: str) -> None:
    task = shown(job(**changes)).get("task", "")
    assert task.startswith(says)
    assert bool(task) == bool(says)


def test_what_a_rank_holds_is_shown_with_the_mode_that_auto_chose() -> None:
    memory = Estimate("fsdp", "auto: as measured", NEED, 80 * 2**30)
    found = shown(gpus(), memory)
    assert found["mode"] == "fsdp (auto: as measured)"
    assert found["mesh"] == "dp_shard 32"
    assert found["rank's memory"].startswith("about 10.0 MiB of 80.0 GiB: parameters 2.0 MiB, ")
    assert "more memory than" not in str(found)


def test_more_than_the_device_has_is_a_warning() -> None:
    memory = Estimate("ddp", "as set", NEED, 9 * MIB)
    assert shown(gpus(), memory)["warning"] == "more memory than the device has"


def measured(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Estimate | str:
    def dry_run(*_: object, **__: object) -> DryRun:
        return DryRun("ddp", "as set", [NEED])

    monkeypatch.setattr(estimate, "dry_run", dry_run)
    estimate.dry_run_of_job.cache_clear()
    try:
        return estimate.estimate(planned(values))
    finally:
        estimate.dry_run_of_job.cache_clear()


def test_a_device_is_a_gpu_or_a_share_of_the_nodes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = job(resources={"memory": "3Gi", "shm": "1Gi"}, procsPerNode=2)
    for job_file, size in ((gpus(), 80 * 2**30), (values, 2**30)):
        found = measured(job_file, monkeypatch)
        assert isinstance(found, Estimate)
        assert found.device == size


def test_without_torch_it_says_how_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "find_spec", lambda _: None)
    found = estimate.estimate(planned(gpus()))
    assert isinstance(found, str)
    assert found.startswith(
        "not known, torch is not installed here; to see it, run TRAINER_DRY_RUN=32 "
    )
    assert shown(gpus(), found)["rank's memory"] == found
    assert estimate.as_json(found) is None


def test_a_dry_run_that_fails_is_shown_in_place_of_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> DryRun:
        raise Fault(Exit.CODE, "the dry run ended with 64: as planted")

    monkeypatch.setattr(estimate, "dry_run", fail)
    found = estimate.estimate(planned(job(nodes=2, name="fails")))
    assert isinstance(found, str)
    assert found.startswith(
        "not known, the dry run ended with 64: as planted; to see it, run TRAINER_DRY_RUN="
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", ["charlm-gpt", "tests.parity.tasks:Gpt", "mnist"])
def test_any_task_that_can_be_imported_has_figures(task: str) -> None:
    def need(mode: str) -> Need:
        values = gpus() | {"trainer": {"globalBatch": 64, "mode": mode, "task": task}}
        values["data"] = {"pvc": "digits"}
        found = estimate.estimate(planned(values))
        assert isinstance(found, Estimate), found
        assert (found.mode, found.device) == (mode, 80 * 2**30)
        return found.need

    whole, sharded = need("ddp"), need("fsdp")
    assert sharded.parameters < whole.parameters / 8
    assert whole.activations == pytest.approx(sharded.activations, rel=0.1)


@pytest.mark.slow
def test_the_task_is_that_of_the_folder_that_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not one of its name in the current folder."""
    for name, text in (
        ("here", "raise OSError"),
        ("there", "from trainer.tasks.digits import Task"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    spec = validate(job(code={"path": "."}, trainer={"task": "mine:Task"}))
    rendered = manifests.render(spec, launchers.find("job"), make_payload(spec, tmp_path / "there"))
    found = estimate.estimate(rendered.plan)
    assert isinstance(found, Estimate), found


def test_for_programs() -> None:
    rendered = render(gpus(faults={"deadline": 5400}), "job")
    figures: list[Estimate | str] = [Estimate("ddp", "as set", NEED, 80 * 2**30)]
    (found,) = json.loads(report.to_json([rendered], figures))
    assert found["gpu_hours"] == 48.0
    assert found["totals"]["nvidia.com/gpu"] == "32"
    assert found["estimate"] == {
        "mode": "ddp",
        "reason": "as set",
        "parts": {
            "parameters": 2 * MIB,
            "gradients": 2 * MIB,
            "optimizer": 4 * MIB,
            "average": 0,
            "activations": MIB,
        },
        "total": 10 * MIB,
        "device": 80 * 2**30,
    }
    assert found["settings"]["globalBatch"] == 64
