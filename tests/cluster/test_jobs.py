"""Jobs on a cluster, through the verbs: trained, killed, stopped, suspended, and nothing left behind.

Two nodes of two ranks on the CPU, from IMAGE (muster:cpu), which a node has or can pull by PULL_POLICY.

    make test-cluster IMAGE=registry.example/muster:cpu
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from k8s.cluster import api, jobs, logs, objects
from k8s.cluster.jobs import BESIDE
from tests.cluster.conftest import FIGURES, Verbs
from tests.rendering import render

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_START = 240.0  # seconds for a job's pods to come, image present
_AGAIN = {"job": 15.0, "jobset": 10.0}  # from a pod's deletion to the next optimiser step
_BACK_OFF = {"job": 10.0}  # of which the controller itself waits
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


def endless(name: str, claim: str) -> dict[str, Any]:
    """Return a job that goes on until somebody ends it, and keeps its checkpoints in a claim."""
    values = job(name, steps=_STEPS, checkpointSteps=25, logSteps=1)
    return values | {"checkpoints": {"pvc": claim}}


@contextmanager
def submitted(verbs: Verbs, launcher: str, values: dict[str, Any]) -> Iterator[str]:
    """Submit a job, and at the end delete it and see that nothing of it is left."""
    file = verbs.folder / f"{values['name']}-{launcher}.yaml"
    file.write_text(render(values, launcher).text)
    verbs.does("submit", str(file))
    try:
        yield values["name"]
    except BaseException:
        folder = os.environ.get("MUSTER_TEST_LOGS", "build/cluster-logs")
        verbs.run("logs", values["name"], "--save", f"{folder}/{values['name']}")
        raise
    finally:
        verbs.run("delete", values["name"])
    until(lambda: left(verbs, values["name"]) == [], 90, lambda: left(verbs, values["name"]))


def left(verbs: Verbs, name: str) -> list[str]:
    """Return what is left in the namespace of a job."""
    labels = {"app.kubernetes.io/instance": name}
    found = []
    for api_version, kind in [("v1", "Pod"), ("batch/v1", "Job"), *BESIDE]:
        try:
            items = objects.find(verbs.cluster, api_version, kind, labels)
        except objects.NotServed:
            continue
        found += [f"{kind}/{item['metadata']['name']}" for item in items]
    return found


def until(true: Callable[[], Any], seconds: float, seen: Callable[[], Any]) -> Any:
    """Return what `true` comes to when it is not empty; fail with what is `seen` after so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.5)
    pytest.fail(f"not within {seconds} s: {seen()}")


def trained_to(verbs: Verbs, name: str, least: int) -> int:
    """Wait until a job has come to a step, and return which it then was."""
    found: int = until(
        lambda: (now := verbs.step(name)) >= least and now, _START, lambda: verbs.told(name)
    )
    return found


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


def test_a_job_trains_to_its_accuracy(verbs: Verbs, launcher: str) -> None:
    with submitted(verbs, launcher, job("digits", epochs=30)) as name:
        verbs.does("wait", name, "--timeout", "600", timeout=660)
        assert verbs.told(name)["phase"] == "succeeded"
        (summary,) = (one for one in verbs.events(name) if one["event"] == "summary")
        assert summary["accuracy"] >= 0.95
        assert summary["world_size"] == 4
        for option, number, start in (
            ("--rank", "0", "[node 0 rank 0] "),
            ("--node", "1", "[node 1"),
        ):
            shown = verbs.does("logs", name, option, number).splitlines()
            assert shown
            assert all(line.startswith(start) for line in shown)
        folder = verbs.folder / f"saved-{launcher}"
        verbs.does("logs", name, "--save", str(folder))
        assert len([*folder.glob("*.log")]) >= 2
        verbs.does("submit", str(verbs.folder / f"{name}-{launcher}.yaml"), code=64)
        verbs.does("cancel", name, code=64)  # too late
        rows = json.loads(verbs.does("list", "--json"))
        assert [(row["name"], row["phase"]) for row in rows] == [(name, "succeeded")]
        verbs.does("gc", "--older-than", "0")
        assert json.loads(verbs.does("list", "--json")) == []


def test_a_killed_pod_is_replaced_and_the_job_goes_on(
    verbs: Verbs, launcher: str, claim: str
) -> None:
    submitted_at = time.time()
    with submitted(verbs, launcher, endless("killed", claim)) as name:
        trained_to(verbs, name, 60)
        first = next(one for one in verbs.events(name) if one["event"] == "step")
        start = first["time"] - submitted_at
        victim = next(pod for pod in verbs.told(name)["pods"] if pod["node"] == 1)
        path = objects.path_of(verbs.cluster, "v1", "Pod", victim["name"])
        began = time.time()
        api.call(verbs.cluster, "DELETE", path, body={"gracePeriodSeconds": 0})

        def again() -> list[dict[str, Any]]:
            """What node 0 says from its return on: that it resumed, then its first step."""
            events = [one for one in verbs.events(name) if one["time"] > began]
            resumed = [n for n, one in enumerate(events) if one.get("action") == "resumed"]
            later = events[resumed[-1] :] if resumed else []
            steps = [one for one in later if one["event"] == "step"]
            return [later[0], steps[0]] if steps else []

        resumed, first = until(again, 120, lambda: verbs.told(name))
        seconds, counted = first["time"] - began, verbs.told(name)["restarts"]
        FIGURES.append(
            f"{launcher}: first step {start:.1f} s after submission, {seconds:.1f} s after a pod's "
            f"deletion; {counted} failures counted"
        )
        assert resumed["step"] >= 25  # from a checkpoint, not from the start
        assert first["step"] == resumed["step"] + 1
        # A stand-in's time is this machine's: there it is held against the same job's own start.
        own = _BACK_OFF.get(launcher, 0.0) + 3 * start
        assert seconds <= (own if verbs.standin else _AGAIN.get(launcher, 60))
        assert counted <= 1


def test_sigterm_saves_a_checkpoint(verbs: Verbs, launcher: str, claim: str) -> None:
    with submitted(verbs, launcher, endless("stopped", claim)) as name:
        trained_to(verbs, name, 30)
        job_ = jobs.look(verbs.cluster, name)
        first = next(pod for pod in jobs.pods(verbs.cluster, job_) if pod.node == 0)
        following = logs.Following(verbs.cluster, query={"follow": "true"})
        following.add(first)
        lines: list[str] = []
        api.call(verbs.cluster, "DELETE", objects.path_of(verbs.cluster, "v1", "Pod", first.name))
        until(lambda: following.drain(lines.append, seconds=0.5) or not following.reading, 60, list)
        following.close()
        said = [
            json.loads(words) for line in lines if (words := line.partition("] ")[2])[:1] == "{"
        ]
        (stop,) = (one for one in said if one.get("kind") == "stopped")
        assert stop["checkpoint"]
        until(
            lambda: any(
                one.get("action") == "resumed" and one["step"] >= stop["step"]
                for one in verbs.events(name)
            ),
            120,
            lambda: verbs.told(name),
        )


def test_bad_configuration_is_final(verbs: Verbs, launcher: str) -> None:
    unknown = job("wrong", task="no_such_module:Task")  # which only the image can know
    with submitted(verbs, launcher, unknown) as name:
        verbs.does("wait", name, "--timeout", "300", code=64, timeout=360)
        told = verbs.told(name)
        assert told["phase"] == "failed"
        assert told["restarts"] <= 2  # each node's failure itself; nothing was tried again
        assert len(told["pods"]) <= 2


def test_suspended_resumed_and_cancelled(verbs: Verbs, launcher: str, claim: str) -> None:
    with submitted(verbs, launcher, endless("paused", claim)) as name:
        before = trained_to(verbs, name, 30)
        verbs.does("scale", name, "1", code=64)  # of fixed size
        verbs.does("suspend", name)
        until(lambda: verbs.told(name)["pods"] == [], 90, lambda: verbs.told(name))
        assert verbs.told(name)["phase"] == "suspended"
        verbs.does("resume", name)
        assert trained_to(verbs, name, before + 1) > before
        verbs.does("cancel", name)
        verbs.does("wait", name, "--timeout", "60", code=143)
        until(lambda: verbs.told(name)["pods"] == [], 90, lambda: verbs.told(name))
        verbs.does("gc", "--older-than", "0")


def test_what_a_cluster_has_is_told(verbs: Verbs) -> None:
    found = {one["about"]: one for one in json.loads(verbs.does("doctor", "--json"))}
    assert found["launcher job"]["good"] is True
    assert "restricted" in found["pod security"]["words"]
