"""A job's objects as in a cluster, and a connection to that cluster, for the tests of the verbs."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from k8s.cluster.client import api
from tests.conftest import ROOT, clean_environment
from tests.standin.server import Answer, Server

Run = Callable[..., tuple[int, str, str]]
Cluster = tuple[Server, Path]  # the server and its kubeconfig

LABELS = {
    "app.kubernetes.io/managed-by": "muster",
    "app.kubernetes.io/instance": "digits",
    "app.kubernetes.io/component": "trainer",
}
STEP = json.dumps(
    {
        "event": "step",
        "step": 10,
        "steps": 40,
        "samples": 320,
        "samples_per_s": 96.0,
        "loss": 0.5,
        "goodput": 0.873,
        "spent_s": {"training": 87.3, "start": 8.4, "data": 0.2, "evaluation": 4.1},
    }
)
USAGE = json.dumps(
    {
        "event": "usage",
        "ranks": [
            {"rank": rank, "cpu": 0.5, "busy": 0.25 * rank, "memory": 2**30, "memory_of": 2**32}
            for rank in range(4)
        ],
    }
)
RUNNING = {"replicatedJobsStatus": [{"name": "node", "ready": 1}], "restarts": 2}
COMPLETED = {
    "conditions": [
        {"type": "Completed", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    ]
}
FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "FailedJobs"}]}
JOBSET = ("jobset.x-k8s.io/v1alpha2", "JobSet")


def jobset(spec: Any = None, name: str = "digits", /, **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": LABELS}
    return {"metadata": metadata, "spec": spec or {}, "status": status}


def pod(name: str, node: int, *, job: str = "digits", **status: Any) -> dict[str, Any]:
    """Return a pod of two ranks."""
    index = {"batch.kubernetes.io/job-completion-index": str(node)}
    labels = LABELS | {"app.kubernetes.io/instance": job} | index
    variables = [{"name": "PET_NPROC_PER_NODE", "value": "2"}]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": "machine-1", "containers": [{"name": "trainer", "env": variables}]},
        "status": status,
    }


def ended(code: int) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": "Error"}}
    return {"phase": "Failed", "containerStatuses": [{"restartCount": 0, "state": state}]}


def fill(server: Server, **status: Any) -> None:
    """Create a JobSet with two nodes of two ranks, their logs, an event and their metrics."""
    server.put(*JOBSET, jobset(**status))
    for node in range(2):
        name = f"digits-node-0-{node}"
        server.put("v1", "Pod", pod(name, node, phase="Running"))
        server.logs[name] = f"launch: here\n{USAGE}\n{STEP}\n"
        server.put(
            "metrics.k8s.io/v1beta1",
            "PodMetrics",
            {
                "metadata": {"name": name, "labels": LABELS},
                "containers": [{"name": "trainer", "usage": {"cpu": "1500m", "memory": "3Gi"}}],
            },
        )
    event = {
        "metadata": {"name": "digits.1"},
        "type": "Warning",
        "reason": "FailedMount",
        "message": "no such volume",
        "involvedObject": {"name": "digits-node-0-1"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    server.put("v1", "Event", event)


def refuse(
    server: Server, status: int, message: str = "", *, method: str = "", at: str = ""
) -> None:
    """Let the server answer so to requests with this method, if one is given, whose path has `at`."""
    answer: Answer = (status, {}, json.dumps({"message": message}))
    server.answer = lambda asked, path: answer if method in ("", asked) and at in path else None


def submit(run: Run, cluster: Cluster, folder: Path, launcher: str, **values: Any) -> str:
    """Render a small job with these values, submit it, and return all that was printed."""
    from tests.rendering import job, render

    file, rendered = folder / "rendered.yaml", render(job(**values), launcher).text
    file.write_text(rendered, encoding="utf-8")
    code, out, err = run(cluster[1], "submit", str(file))
    assert code == 0, err
    return rendered + out + err


def interrupt(config: Path, *verb: str, line: str, times: int = 1) -> None:
    """Start a verb, interrupt it after so many lines that match `line`, and let it end at once."""
    process = subprocess.Popen(
        [sys.executable, "-m", "k8s", *verb],
        cwd=ROOT,
        env=clean_environment(KUBECONFIG=str(config)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    for _ in range(times):
        while not re.search(line, text := process.stdout.readline()):
            assert text
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    rest, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - began < 6
    assert "Traceback" not in rest


def golden(launcher: str, name: str = "digits-ddp") -> Path:
    return ROOT / "tests/golden" / name / f"{launcher}.yaml"


def connection(config: Path, *, timeout: float) -> api.Cluster:
    from kubernetes import client
    from kubernetes import config as loader

    made = client.Configuration()
    loader.load_kube_config(config_file=str(config), client_configuration=made)
    made.retries = False
    return api.Cluster(client.ApiClient(made), "lab", "here", timeout)
