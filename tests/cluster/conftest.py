"""A new namespace on the cluster of KUBECONFIG, and the verbs as a user types them."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from k8s import launchers
from k8s.cluster import jobs
from k8s.cluster.client import api, objects
from k8s.cluster.client.api import Cluster
from k8s.cluster.client.connect import connect
from k8s.cluster.client.objects import NotServed
from k8s.cluster.observe import job_progress, logs
from tests.conftest import ROOT, clean_environment
from tests.rendering import CLUSTER


@dataclass
class Verbs:
    """`python -m k8s` on a namespace of the cluster, as the user of `kubeconfig` if it is given."""

    cluster: Cluster
    folder: Path
    version: str
    kubeconfig: str = ""

    @property
    def standin(self) -> bool:
        """Whether the cluster is tests/standin, which shares this machine with other programs."""
        return self.version.endswith("-standin")

    @property
    def _how(self) -> dict[str, Any]:
        """Return how a verb's process is started."""
        added = {"KUBECONFIG": self.kubeconfig} if self.kubeconfig else {}
        return {"cwd": ROOT, "env": clean_environment(**added), "text": True}

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "k8s", "--namespace", self.cluster.namespace, *arguments]

    def run(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(*arguments),
            **self._how,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def does(self, *arguments: str, code: int = 0, timeout: float = 300) -> str:
        """Run a verb, check its exit code, and return what it printed."""
        ran = self.run(*arguments, timeout=timeout)
        assert ran.returncode == code, f"{arguments}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    @contextmanager
    def starts(self, *arguments: str, said: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Start a verb that runs until it is interrupted; yield it and the line that contains `said`."""
        command = self._command(*arguments)
        with subprocess.Popen(command, **self._how, stderr=subprocess.PIPE) as process:
            assert process.stderr
            try:
                lines = []
                while said not in (line := process.stderr.readline()):
                    lines.append(line)
                    assert line, "".join(lines)
                yield process, line
            finally:
                process.kill()

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.does("status", name, "--json"))
        return found

    def step(self, name: str) -> int:
        """Return a job's last step, without a verb: its start would cost a second of the CPU."""
        job = jobs.get_job(self.cluster, name)
        found = job_progress.read_progress(self.cluster, jobs.pods(self.cluster, job))
        return found.progress.step if found.progress else 0

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the job's own events in the order of their times, also without a verb.

        The events of a pod that was replaced are missing.
        """
        pods = jobs.pods(self.cluster, jobs.get_job(self.cluster, name))
        texts = [logs.text(self.cluster, pod.name, pod.container, {}) for pod in pods]
        lines = [line for text in texts for line in text.splitlines()]
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return sorted(found, key=itemgetter("time"))


FIGURES: list[str] = []  # what was measured, one line each


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in FIGURES:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def verbs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verbs]:
    if not os.environ.get("MUSTER_TEST_CLUSTER"):
        pytest.skip("on a cluster: run by `make test-cluster`, with KUBECONFIG")
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: set KUBECONFIG")
    cluster = connect(context=None, namespace=f"muster-test-{uuid.uuid4().hex[:8]}", timeout=30)
    path = f"/api/v1/namespaces/{cluster.namespace}"
    levels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": cluster.namespace, "labels": levels}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    objects.apply(cluster, namespace)
    version = api.call(cluster, "GET", "/version")["gitVersion"]
    FIGURES.append(f"on Kubernetes {version}:")
    try:
        yield Verbs(cluster, tmp_path_factory.mktemp("jobs"), version)
    finally:
        api.call(cluster, "DELETE", path)


@pytest.fixture(params=CLUSTER)
def launcher(request: pytest.FixtureRequest, verbs: Verbs) -> str:
    """Every launcher whose API the cluster serves."""
    kind = next(kind for kind in launchers.job_kinds() if kind.launcher == request.param)
    try:
        objects.resource(verbs.cluster, kind.api_version, kind.kind)
    except NotServed as missing:
        pytest.skip(str(missing))
    return str(request.param)


@pytest.fixture
def claim(verbs: Verbs) -> Iterator[str]:
    """A volume for checkpoints, of the cluster's default class; on one node two pods may share it."""
    name = f"out-{time.monotonic_ns() % 10**8}"
    resources = {"requests": {"storage": "200Mi"}}
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources},
    }
    objects.apply(verbs.cluster, body)
    yield name
    objects.delete(verbs.cluster, body)
