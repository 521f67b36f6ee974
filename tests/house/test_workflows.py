"""The workflow: pinned versions, only the rights that it needs, and existing make targets.

Also how many tests a machine runs at a time.
"""

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml

from tests import conftest
from tests.conftest import ROOT, run_command

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PIN = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def read(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_digest(path: Path) -> None:
    used = [
        line.split("uses: ", 1)[1] for line in path.read_text().splitlines() if "uses: " in line
    ]
    assert used
    assert [line for line in used if not PIN.fullmatch(line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_rights_are_least_and_every_job_ends(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    publishes = {"contents": "read", "packages": "write", "id-token": "write"}
    for name, job in workflow["jobs"].items():
        assert job.get("permissions") == (publishes if path.name == "release.yml" else None), name
        assert job["timeout-minutes"] <= 90, name
        for step in job["steps"]:
            if str(step.get("uses", "")).startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_it_runs_is_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [s["run"] for job in read(path)["jobs"].values() for s in job["steps"] if "run" in s]
    for words in (run.split() for run in runs if run.startswith("make ")):
        assert {word for word in words[1:] if "=" not in word} <= targets


def test_ci_is_what_was_promised() -> None:
    jobs = read(ROOT / ".github/workflows/ci.yml")["jobs"]
    assert set(jobs) == {"lint", "test", "image", "kind"}
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert any("pytest" in step.get("run", "") for step in jobs["image"]["steps"])  # no copy of it
    kept = [step for step in jobs["kind"]["steps"] if step.get("if") == "failure()"]
    assert len(kept) == 2  # the logs are collected and kept


def test_a_release_is_signed_by_its_digest_and_has_its_provenance() -> None:
    (job,) = read(ROOT / ".github/workflows/release.yml")["jobs"].values()
    *_, publish, sign = [step["run"] for step in job["steps"] if "run" in step]
    assert publish.startswith("make publish ")
    assert sign.startswith('cosign sign --yes "$IMAGE@$(jq -r \'.["containerimage.digest"]\' ')
    command = ["make", "--dry-run", "publish", "IMAGE=a:1"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"--provenance=mode=max", "--sbom=true", "--push"} <= set(made.split())


def test_what_kind_gets_is_of_a_pinned_version() -> None:
    folder = ROOT / "tests/cluster/kind"
    script = (folder / "up.sh").read_text()
    subprocess.run(["bash", "-n", str(folder / "up.sh")], check=True)
    assert "jobset=v0.12.0" in script
    assert "latest" not in script
    node = yaml.safe_load((folder / "cluster.yaml").read_text())["nodes"][0]["image"]
    assert re.fullmatch(r"kindest/node:v[\d.]+@sha256:[0-9a-f]{64}", node)
    for name, version in (("trainer", "v2.3.0"), ("training-operator", "v1.9.3")):
        made = yaml.safe_load((folder / name / "kustomization.yaml").read_text())
        remote = [one for one in made["resources"] if one.startswith("https://")]
        assert remote
        assert all(one.endswith(f"?ref={version}") for one in remote)


def test_test_cluster_takes_its_image_from_the_command_line_or_its_own() -> None:
    for words, image in (([], "muster:cpu"), (["IMAGE=registry/x:1"], "registry/x:1")):
        ran = run_command(["make", "--dry-run", "test-cluster", *words], check=True)
        assert f" IMAGE={image} " in ran.stdout


@pytest.mark.parametrize(
    ("text", "words", "folder"),
    [
        ("name: plain  # of the job\n", [], "build/plain"),
        ('name: "double"\n', [], "build/double"),
        ("name: 'single'\n", [], "build/single"),
        ("name: plain\n", ["SET=nodes=2 name=set"], "build/set"),
        ("{name: flow}\n", [], None),
    ],
)
def test_make_starts_what_it_has_rendered(
    text: str, words: list[str], folder: str | None, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(text)
    command = ["make", "--dry-run", "run", f"JOB={job}", "FRESH=1", *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if folder is None:  # and does not remove build/run
        assert (ran.returncode, "no line starts with `name:`" in ran.stderr) == (2, True)
    else:
        removed = f"rm -rf {folder}/runs {folder}/run\n"
        for line in (f" -o {folder}\n", removed, f" {folder}/local.sh; "):
            assert line in ran.stdout


def test_make_refuses_a_compose_that_would_not_end_a_job_with_its_first_failure(
    tmp_path: Path,
) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho '      --abort-on-container-exit'\n", encoding="ascii")
    docker.chmod(0o755)
    command = ["make", "compose-run", "--old-file=.venv/.stamp"]
    ran = run_command(command, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert ran.returncode == 2
    assert "no option --abort-on-container-failure here; Docker Compose 2.40 has it" in ran.stderr


@pytest.mark.parametrize(
    ("cores", "gigabytes", "which", "workers"),
    [
        (1, 8, "", 2),
        (2, 24, "", 2),
        (2, 24, "not slow", 3),
        (8, 64, "", 8),
        (64, 32, "", 8),  # as many as can have 4 GB each
    ],
)
def test_the_tests_take_the_cores_and_the_memory_that_there_are(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: int, which: str, workers: int
) -> None:
    memory = SimpleNamespace(total=gigabytes * 10**9)
    monkeypatch.setattr(conftest, "count_cores", lambda: cores)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=which))
    assert conftest.pytest_xdist_auto_num_workers(config) == workers
