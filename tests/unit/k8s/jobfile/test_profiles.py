"""Profiles of sites, and lists that are merged by name."""

from pathlib import Path

import pytest
import yaml

from k8s import launchers
from k8s.cli import command
from k8s.jobfile import load, validate
from k8s.plan import make
from k8s.plan.model import Payload
from tests.rendering import CLUSTER, EXAMPLE, ROOT, render

PROFILES = sorted(path.stem for path in load.PROFILES.glob("*.yaml"))
WANTED = ["aks-ndv5", "eks-p5-efa", "generic-gpu", "gke-a3", "kind-cpu", "onprem-roce"]


def values(name: str, *more: str) -> dict[str, object]:
    return load.read([load.profile(name), *more, str(EXAMPLE)]).values


def test_the_profiles() -> None:
    assert PROFILES == WANTED
    for name in PROFILES:
        assert load.profile(name) == str(ROOT / "k8s" / "profiles" / f"{name}.yaml")


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("launcher", CLUSTER)
def test_a_job_renders_on_every_profile(name: str, launcher: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("{name: a, image: 'b:1', nodes: 2, trainer: {globalBatch: 64}}")
    made = load.read([load.profile(name), str(job)]).values
    assert render(made, launcher).text
    # A profile says nothing of the job itself.
    said = yaml.safe_load(Path(load.profile(name)).read_text())
    assert not {"name", "image", "nodes", "trainer", "launcher"} & set(said)


def test_the_job_wins_over_its_profile() -> None:
    made = values("eks-p5-efa")
    assert made["resources"] == {
        "gpu": 8,
        "gpuMemory": "80Gi",
        "cpu": 1,
        "memory": "2Gi",
        "shm": "256Mi",
        "rdma": {"vpc.amazonaws.com/efa": 32},
    }


def test_gpus_of_a_profile_make_ranks(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("{name: a, image: 'b:1', nodes: 2, trainer: {globalBatch: 64}}")
    spec = validate.validate(load.read([load.profile("gke-a3"), str(job)]).values)
    made = make.make(spec, launchers.find("job"), Payload())
    assert (made.size.procs, made.sizing.world_size) == (8, 16)


def test_items_with_names_are_merged_by_name(tmp_path: Path) -> None:
    site, job = tmp_path / "site.yaml", tmp_path / "job.yaml"
    site.write_text("env: [{name: A, value: site}, {name: B, value: site}]\ntags: [a, b]\n")
    job.write_text("env: [{name: B, valueFrom: {x: y}}, {name: C, value: job}]\ntags: [c]\n")
    read = load.read([str(site), str(job)])
    assert read.values["env"] == [
        {"name": "A", "value": "site"},
        {"name": "B", "valueFrom": {"x": "y"}},
        {"name": "C", "value": "job"},
    ]
    assert read.values["tags"] == ["c"]
    assert read.origin_of("env[0].value=1: wrong") == str(site)
    assert read.origin_of("env[2].value=1: wrong") == str(job)
    job.write_text("env: []\n")
    assert load.read([str(site), str(job)]).values["env"] == []


def test_what_is_wrong_in_a_profile_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [str(EXAMPLE), "--profile", "onprem-roce", "--launcher", "volcano"]
    assert command.main([*arguments, "--set", "scheduling.avoidLabels=5"]) == 64
    assert "--set: scheduling.avoidLabels=5: must be a mapping" in capsys.readouterr().err
