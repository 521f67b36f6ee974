"""The user's own program on a cluster: the launcher and the code folder travel with the job.

make test-cluster IMAGE=registry.example/any-image-with-torch:1.0
"""

import os
from pathlib import Path
from typing import Any

import pytest

from k8s.cluster.client import objects
from tests.cluster.conftest import Verbs
from tests.cluster.running import START, job, submitted, until, write
from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def own(**changes: Any) -> dict[str, Any]:
    values = job("own")
    del values["trainer"]
    return values | changes


def test_a_script_trains_from_the_folder_that_travels(
    verbs: Verbs, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "k8s" / "jobs")
    run = {"script": "train.py", "args": ["--steps", 200], "patterns": "key=value"}
    with submitted(verbs, launcher, own(run=run, code={"path": "own_script"})) as name:
        verbs.does("wait", name, "--timeout", "240", timeout=300)
        assert verbs.status(name)["phase"] == "succeeded"
        steps = [one for one in verbs.events(name) if one["event"] == "step"]
        assert steps[-1]["step"] == 200
        assert steps[-1]["loss"] < 0.1 * steps[0]["loss"]


def test_a_large_folder_travels_on_a_claim(
    verbs: Verbs, launcher: str, claim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is larger than a ConfigMap; the pod that copies it is deleted."""
    (tmp_path / "data.bin").write_bytes(os.urandom(2**21))
    script = "import pathlib; print('read', len(pathlib.Path('data.bin').read_bytes()))\n"
    (tmp_path / "train.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    values = own(run={"script": "train.py"}, code={"path": ".", "via": "pvc", "pvc": claim})
    with submitted(verbs, launcher, values) as name:
        verbs.does("wait", name, "--timeout", "240", timeout=300)
        assert verbs.does("logs", name).count(f"read {2**21}") == 2 * values["procsPerNode"]
        assert objects.get(verbs.cluster, "v1", "Pod", f"{name}-code") is None
    again = verbs.run("submit", str(verbs.folder / f"own-{launcher}.yaml"))
    verbs.run("delete", name)
    assert "has the folder already" in again.stderr


def test_changed_code_replaces_a_job_that_runs(
    verbs: Verbs, launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pods with the old code are gone before, so no log has both."""
    monkeypatch.chdir(tmp_path)
    script = "import time; print('version', {}, time.time(), flush=True); time.sleep({})"
    (tmp_path / "train.py").write_text(script.format(1, 600))
    values = own(run={"script": "train.py"}, code={"path": "."})
    with submitted(verbs, launcher, values) as name:
        until(lambda: "version 1" in verbs.run("logs", name).stdout, START, lambda: "no version 1")
        (tmp_path / "train.py").write_text(script.format(2, 0))
        file = write(verbs, launcher, values)
        verbs.does("submit", str(file), "--replace")
        verbs.does("wait", name, "--timeout", "240", timeout=300)
        logs = verbs.does("logs", name)
        assert "version 2" in logs
        assert "version 1" not in logs


def test_an_exit_code_of_its_own_is_understood(verbs: Verbs, launcher: str) -> None:
    """65 fails the job at once; 3 would count as a bug and be retried."""
    command = ["python3", "-c", "raise SystemExit(3)"]
    with submitted(verbs, launcher, own(run={"command": command, "exitCodes": {3: 65}})) as name:
        ended = verbs.run("wait", name, "--timeout", "240", timeout=300)
        assert ended.returncode == 65, ended.stderr
        assert verbs.status(name)["phase"] == "failed"
        assert "ended with its own code 3" in verbs.does("why", name)
