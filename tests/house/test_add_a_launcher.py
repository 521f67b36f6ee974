"""The recipe for a launcher in k8s/README.md: render.py and the verbs use the added folder."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, run_command
from tests.house import pages
from tests.rendering import EXAMPLE
from tests.standin import objects
from tests.standin.http import serving
from tests.standin.server import Server

NAMES = ("__init__.py", "job_kind.py", "manifest.yaml.j2", "pod.yaml.j2")
FOLDER = dict(
    zip(NAMES, (code for _, code in pages.recipe("k8s/README.md", "Add a launcher")), strict=True)
)
Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Run Python in a copy of the code with the launcher `trainingset`."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "render.py", root)
    for package in ("k8s", "trainer"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=skipped)
    folder = root / "k8s" / "launchers" / "trainingset"
    folder.mkdir()
    for name, text in FOLDER.items():
        (folder / name).write_text(text.lstrip(), encoding="utf-8")

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_command(
            [sys.executable, *arguments],
            folder=root,
            env=environment | {"PYTHONPATH": str(root)},
        )

    return run


@pytest.mark.slow
def test_it_renders_and_has_a_role(python: Python) -> None:
    job = ("render.py", str(EXAMPLE), "--launcher", "trainingset")
    rendered = python(*job)
    assert rendered.returncode == 0, rendered.stderr
    (made,) = (one for one in yaml.safe_load_all(rendered.stdout) if one["kind"] == "TrainingSet")
    assert made["spec"]["replicas"] == 2
    assert made["spec"]["template"]["spec"]["containers"][0]["name"] == "trainer"
    rules = next(yaml.safe_load_all(python(*job, "--rbac", "user:jane").stdout))["rules"]
    assert ("example.com", ["trainingsets"]) in [(r["apiGroups"][0], r["resources"]) for r in rules]
    assert "one number of nodes" in python("render.py", "--explain", "nodes.min").stdout
    refused = python(*job, "--set", "faults.ttl=60")
    assert (refused.returncode, "use python -m k8s gc" in refused.stderr) == (64, True)


@pytest.mark.slow
def test_the_verbs_read_suspend_and_look_for_it(
    python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(objects.GROUPS, "example.com/v1", {"TrainingSet": "trainingsets"})
    server = Server()
    with serving(server, tmp_path) as config:
        labels = {"app.kubernetes.io/managed-by": "muster"}
        run = {
            "metadata": {"name": "mine", "labels": labels},
            "spec": {},
            "status": {"phase": "Running"},
        }
        server.put("example.com/v1", "TrainingSet", run)

        def verb(*arguments: str) -> str:
            ran = python("-m", "k8s", *arguments, KUBECONFIG=str(config))
            assert ran.returncode == 0, ran.stderr
            return ran.stdout

        assert yaml.safe_load(verb("status", "mine", "--json"))["phase"] == "running"
        verb("suspend", "mine")
        path = server.path("example.com/v1", "TrainingSet", "mine")
        assert server.objects[path]["spec"] == {"suspend": True}
        assert "TrainingSet of example.com/v1" in verb("doctor")
        del server.groups["example.com/v1"]
        assert "install the operator of example.com" in verb("doctor", "--json")
