"""A launcher is one folder: one is added to a copy of the code, and render.py and the verbs use it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, clean_environment
from tests.rendering import EXAMPLE
from tests.standin import objects
from tests.standin.http import serving
from tests.standin.server import Server

FOLDER = {
    "__init__.py": '''
"""A TrainRun of lab.example: a count and a pod template."""

from k8s.launchers.trainrun.job_kind import JOB_KIND
from k8s.plan.launcher import Launcher, RunsIn

LAUNCHER = Launcher(
    name="trainrun",
    summary="lab.example/v1 TrainRun",
    runs_in=RunsIn.POD,
    job_kind=JOB_KIND,
    check=lambda _spec: [],
    restarts=lambda plan: f"any failure replaces the pod, {plan.lifetime.max_restarts} at most",
    host=lambda spec, node: f"{spec.name}-{node}",
    master=lambda spec: f"{spec.name}-0.{spec.name}",
    lacks={"nodes.min": "a TrainRun has one number of pods"},
)
''',
    "job_kind.py": '''
"""The TrainRun as the verbs see it."""

from k8s.plan.job_kind import JobKind, Phase, State, label_number

JOB_KIND = JobKind(
    launcher="trainrun",
    api_version="lab.example/v1",
    kind="TrainRun",
    read=lambda job: State(Phase(job.get("status", {}).get("phase", "pending"))),
    node=label_number("batch.kubernetes.io/job-completion-index"),
    suspend_field=("spec", "paused"),
    install={"lab.example": "the lab's operator, https://lab.example"},
    label_domains=("lab.example",),
    rights=(("lab.example/v1", "TrainLog", ("get",)),),
)
''',
    "manifest.yaml.j2": """
apiVersion: lab.example/v1
kind: TrainRun
metadata: {{ plan.job_metadata }}
spec:
  paused: {{ plan.suspend_job }}
  count: {{ plan.size.nodes }}
  template: {{ placeholder }}
""",
    "pod.yaml.j2": """{% extends "shared/indexed.yaml.j2" %}
{% block pod %}
  restartPolicy: Never
{% endblock %}
""",
}
Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Run Python in a copy of the code with the launcher `trainrun`."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "render.py", root)
    for package in ("k8s", "trainer"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=skipped)
    folder = root / "k8s" / "launchers" / "trainrun"
    folder.mkdir()
    for name, text in FOLDER.items():
        (folder / name).write_text(text.lstrip(), encoding="utf-8")

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=root,
            env=clean_environment(**environment) | {"PYTHONPATH": os.fspath(root)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.slow
def test_it_renders_and_has_a_role(python: Python) -> None:
    job = ("render.py", str(EXAMPLE), "--launcher", "trainrun")
    rendered = python(*job)
    assert rendered.returncode == 0, rendered.stderr
    (made,) = (one for one in yaml.safe_load_all(rendered.stdout) if one["kind"] == "TrainRun")
    assert made["spec"]["count"] == 2
    assert made["spec"]["template"]["spec"]["containers"][0]["name"] == "trainer"
    rules = next(yaml.safe_load_all(python(*job, "--rbac", "user:jane").stdout))["rules"]
    assert [(one["resources"], one["verbs"][0]) for one in rules[:2]] == [
        (["trainruns"], "get"),
        (["trainlogs"], "get"),
    ]
    refused = python(*job, "--set", "labels[lab.example/x]=y").stderr
    assert "labels.lab.example/x: set by muster or a controller" in refused
    assert "one number of pods" in python("render.py", "--explain", "nodes.min").stdout


@pytest.mark.slow
def test_the_verbs_read_suspend_and_look_for_it(
    python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(objects.GROUPS, "lab.example/v1", {"TrainRun": "trainruns"})
    server = Server()
    with serving(server, tmp_path) as config:
        labels = {"app.kubernetes.io/managed-by": "muster"}
        run = {"metadata": {"name": "mine", "labels": labels}, "status": {"phase": "running"}}
        server.put("lab.example/v1", "TrainRun", run)

        def verb(*arguments: str) -> str:
            ran = python("-m", "k8s", *arguments, KUBECONFIG=str(config))
            assert ran.returncode == 0, ran.stderr
            return ran.stdout

        assert yaml.safe_load(verb("status", "mine", "--json"))["phase"] == "running"
        verb("suspend", "mine")
        path = server.path("lab.example/v1", "TrainRun", "mine")
        assert server.objects[path]["spec"] == {"paused": True}
        assert "TrainRun of lab.example/v1" in verb("doctor")
        del server.groups["lab.example/v1"]
        assert "install the lab's operator" in verb("doctor", "--json")
