"""Jobs of the suite on a cluster: submit them, wait for them, and delete them at the end.

with submitted(verbs, "jobset", endless("mine", claim)) as name:
    trained_to(verbs, name, 30)
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from k8s import launchers
from k8s.cluster import jobs
from k8s.cluster.client import objects
from k8s.render import files
from tests.cluster.conftest import Verbs
from tests.rendering import render

START = 240.0  # seconds for a job's pods to start, if the image is present
_STEPS = 200_000  # more than any test waits for


def job(name: str, **trainer: Any) -> dict[str, Any]:
    """Return a job file's values: small enough for one machine with two CPUs and 6 GiB."""
    return {
        "name": name,
        "image": os.environ.get("IMAGE", "muster:cpu"),
        "imagePullPolicy": os.environ.get("PULL_POLICY", "IfNotPresent"),
        "nodes": 2,
        "procsPerNode": 2,
        "resources": {"cpu": "400m", "memory": "2Gi", "shm": "64Mi"},
        "trainer": {"task": "digits", "mode": "ddp", "globalBatch": 32, "log": "json", **trainer},
        "faults": {"maxRestarts": 2, "gracePeriod": 30},
    }


DIGITS = job("digits", epochs=30)


def endless(name: str, claim: str) -> dict[str, Any]:
    """Return a job that runs until it is stopped, and keeps its checkpoints in a claim."""
    values = job(name, steps=_STEPS, checkpointSteps=25, logSteps=1)
    return values | {"checkpoints": {"pvc": claim}}


def write(verbs: Verbs, launcher: str, values: dict[str, Any]) -> Path:
    """Render a job to a file, with the files that travel with it next to it."""
    for name, content in files.files(render(values, launcher), split=False):
        (verbs.folder / name).write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
    return (verbs.folder / f"{launcher}.yaml").replace(
        verbs.folder / f"{values['name']}-{launcher}.yaml"
    )


@contextmanager
def submitted(verbs: Verbs, launcher: str, values: dict[str, Any]) -> Iterator[str]:
    """Submit a job, and at the end delete it and check that nothing of it is left."""
    verbs.does("submit", str(write(verbs, launcher, values)))
    try:
        yield values["name"]
    except BaseException:
        folder = os.environ.get("MUSTER_TEST_LOGS", "build/cluster-logs")
        verbs.run("logs", values["name"], "--save", f"{folder}/{values['name']}")
        raise
    finally:  # the next job has the same name
        verbs.run("delete", values["name"])
        until(lambda: left(verbs, values["name"]) == [], 90, lambda: left(verbs, values["name"]))


def left(verbs: Verbs, name: str) -> list[str]:
    """Return what is left of a job in the namespace."""
    labels = {"app.kubernetes.io/instance": name}
    found = []
    kinds = launchers.job_kinds()
    companions = {api for kind in kinds for api in jobs.companion_kinds(kind)}
    for api_version, kind in [("v1", "Pod"), ("batch/v1", "Job"), *companions]:
        try:
            items = objects.find(verbs.cluster, api_version, kind, labels)
        except objects.NotServed:
            continue
        found += [f"{kind}/{item['metadata']['name']}" for item in items]
    return found


def until(true: Callable[[], Any], seconds: float, seen: Callable[[], Any]) -> Any:
    """Return the result of `true` once it is not empty; after the limit, fail with what is `seen`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.5)
    pytest.fail(f"not within {seconds} s: {seen()}")


def trained_to(verbs: Verbs, name: str, least: int) -> int:
    """Wait until a job has reached a step, and return its step then; fail if the job has ended."""

    def come() -> int:
        if (now := verbs.step(name)) < least and jobs.get_job(
            verbs.cluster, name
        ).state.phase.ended:
            pytest.fail(f"it has ended at step {now} of {least}: {verbs.status(name)}")
        return now if now >= least else 0

    found: int = until(come, START, lambda: verbs.status(name))
    return found


def are_ready(verbs: Verbs, labels: dict[str, str]) -> bool:
    """Return whether there are pods with these labels and all of them are ready."""
    found = objects.find(verbs.cluster, "v1", "Pod", labels)
    shown = [pod["status"].get("conditions", []) for pod in found]
    ready = {"type": "Ready", "status": "True"}
    return bool(shown) and all(any(ready.items() <= one.items() for one in each) for each in shown)
