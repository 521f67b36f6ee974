"""Verbs that show a job or the cluster: `top`, `port-forward`, `doctor`.

make test-cluster IMAGE=registry.example/muster:cpu
"""

import json
import re
import signal
import time
import urllib.request
from typing import Any

import pytest

from k8s.cluster import jobs
from tests.cluster.conftest import Verbs
from tests.cluster.running import START, are_ready, endless, submitted, trained_to, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_what_a_running_job_uses_is_shown(verbs: Verbs, claim: str) -> None:
    def measured() -> list[dict[str, Any]]:
        rows = json.loads(verbs.does("top", "used", "--json"))
        return rows if rows and all(row["cpu"] is not None for row in rows) else []

    probe = {"initialDelaySeconds": 2, "periodSeconds": 2, "failureThreshold": 100}
    container = {"name": "trainer", "livenessProbe": probe}
    probed = {"podPatch": {"spec": {"containers": [container]}}}
    with submitted(verbs, "job", endless("used", claim) | probed) as name:
        trained_to(verbs, name, 30)
        rows = until(measured, 120, lambda: verbs.does("top", name, "--once"))
        assert [(row["rank"], row["node"]) for row in rows] == [(0, 0), (1, 0), (2, 1), (3, 1)]
        before = failed_probes(verbs, name)  # the probes before the first rank started
        time.sleep(5 * probe["periodSeconds"])
        assert failed_probes(verbs, name) == before


def failed_probes(verbs: Verbs, name: str) -> int:
    """Return how often a liveness probe of the job's pods has failed."""
    job = jobs.get_job(verbs.cluster, name)
    events = jobs.events(verbs.cluster, job, {pod.name for pod in jobs.pods(verbs.cluster, job)})
    return sum(one.get("count", 1) for one in events if one["message"].startswith("Liveness"))


def test_tensorboard_shows_a_job_through_a_forwarded_port(verbs: Verbs, claim: str) -> None:
    if verbs.standin:
        pytest.skip("the stand-in has neither Deployments nor port-forward")
    with submitted(verbs, "job", endless("shown", claim) | {"tensorboard": {}}) as name:
        trained_to(verbs, name, 30)
        board = {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": "tensorboard"}
        until(lambda: are_ready(verbs, board), START, lambda: verbs.status(name))
        forward = verbs.starts("port-forward", name, "--port", "0", said="leads to TensorBoard")
        with forward as (process, line):
            (port,) = re.findall(r"http://127.0.0.1:(\d+) ", line)
            address = f"http://127.0.0.1:{port}/data/plugin/scalars/tags"
            tags = until(lambda: fetched(address), 60, lambda: fetched(address))
            assert any("train/loss" in found for found in tags.values())
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 130


def fetched(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310  # of this machine
        return json.load(answer)


def test_what_a_cluster_has_is_shown(verbs: Verbs) -> None:
    found = {one["about"]: one for one in json.loads(verbs.does("doctor", "--json"))}
    assert found["launcher job"]["good"] is True
    assert "restricted" in found["pod security"]["text"]
