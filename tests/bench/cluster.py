"""A cluster with one running job of many pods, on the tests' stand-in for an API server.

with cluster(folder, pods=1000) as kubeconfig: ...
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.conftest import ROOT
from tests.standin.http import serving
from tests.standin.objects import Object, child
from tests.standin.server import Answer, Server

NAME = "digits-ddp"
_INDEX = "batch.kubernetes.io/job-completion-index"
_COLUMNS = {
    "pods": ("Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated", "Gates"),
    "jobs": (
        "Name",
        "Status",
        "Completions",
        "Duration",
        "Age",
        "Containers",
        "Images",
        "Selector",
    ),
}


@contextmanager
def cluster(folder: Path, *, pods: int) -> Iterator[Path]:
    """Yield the kubeconfig of a cluster that runs until the block ends."""
    server = Server()
    server.asks_for_token = False  # kubectl sends none without TLS
    sizes = ("--set", f"nodes={pods}", "--set", f"trainer.globalBatch={4 * pods}")
    file = ROOT / "k8s" / "jobs" / "02-digits-ddp.yaml"
    command = [sys.executable, str(ROOT / "render.py"), str(file), "--launcher", "job", *sizes]
    text = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    (job,) = (one for one in yaml.safe_load_all(text) if one["kind"] == "Job")
    job["status"] = {"active": pods, "ready": pods}
    job["metadata"]["namespace"] = "lab"
    job = server.create(job)
    for number in range(pods):
        server.create(_pod(job, number))
    step = {"event": "step", "step": 100, "steps": 450, "samples": 3200, "samples_per_s": 500.0}
    server.logs[f"{NAME}-0"] = "\n".join([json.dumps(step | {"loss": 0.5})] * 200)
    tables = {f"/{kind}?limit=500": json.dumps(_table(server, kind)) for kind in _COLUMNS}

    def answer(_: str, path: str) -> Answer | None:
        """Answer a request that only kubectl makes: a list without a selector, as a table."""
        return next(((200, {}, text) for end, text in tables.items() if path.endswith(end)), None)

    server.answer = answer
    with serving(server, folder) as config:
        yield config


def _pod(job: Object, number: int) -> Object:
    template = job["spec"]["template"]
    metadata = {
        "labels": {**template["metadata"]["labels"], _INDEX: str(number)},
        "annotations": {**template["metadata"]["annotations"], _INDEX: str(number)},
    }
    running = {"name": "trainer", "ready": True, "restartCount": 0, "state": {"running": {}}}
    status = {
        "phase": "Running",
        "podIP": f"10.1.{number // 250}.{number % 250}",
        "containerStatuses": [running],
        "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")],
    }
    spec = template["spec"] | {"nodeName": f"node-{number // 8}"}
    name = f"{NAME}-{number}"
    return child(job, "v1", "Pod", name, metadata=metadata, spec=spec, status=status)


def _table(server: Server, kind: str) -> Object:
    """Return the table that an API server makes for kubectl, in one page."""
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    names = _COLUMNS[kind]
    rows = [
        {
            "cells": [one["metadata"]["name"], *("running" for _ in names[1:])],
            "object": {**partial, "metadata": one["metadata"]},
        }
        for path, one in server.objects.items()
        if path.split("/")[-2] == kind
    ]
    columns = [{"name": name, "type": "string", "format": "", "priority": 0} for name in names]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "1"},
        "columnDefinitions": columns,
        "rows": rows,
    }
