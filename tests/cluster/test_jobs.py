"""Jobs on a cluster, through the verbs: train, kill, stop, suspend, scale, and leave nothing behind.

Two nodes of two ranks on the CPU, from IMAGE (muster:cpu), which a node has or can pull by PULL_POLICY.

    make test-cluster IMAGE=registry.example/muster:cpu
"""

import json
import os
import shutil
import time
from typing import Any

import pytest
import yaml

from k8s import launchers
from k8s.cluster import jobs
from k8s.cluster.client import api, objects
from k8s.cluster.observe import logs
from tests.cluster.conftest import FIGURES, Verbs
from tests.cluster.running import DIGITS, endless, job, submitted, trained_to, until
from tests.conftest import ROOT, run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_AGAIN = {"job": 15.0, "jobset": 10.0}  # from a pod's deletion to the next optimiser step
_BACK_OFF = {"job": 10.0}  # of these, the controller's own wait


@pytest.fixture(scope="session")
def accuracy_here(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The result of `make run` on this machine for the job that trains to its accuracy."""
    name = f"digits-here-{os.getpid()}"
    file = tmp_path_factory.mktemp("here") / "job.yaml"
    file.write_text(yaml.safe_dump(DIGITS | {"name": name}, sort_keys=False), encoding="utf-8")
    folder = ROOT / "build" / name
    try:
        ran = run_command(["make", "run", f"JOB={file}", "LAUNCHERS="])
        assert ran.returncode == 0, ran.stdout + ran.stderr
        lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (summary,) = (one for one in map(json.loads, lines) if one["event"] == "summary")
    assert summary["world_size"] == 4
    return float(summary["accuracy"])


def test_a_job_trains_to_its_accuracy(verbs: Verbs, launcher: str, accuracy_here: float) -> None:
    """The result equals that of `make run` with the same job file and seed."""
    with submitted(verbs, launcher, DIGITS) as name:
        followed = verbs.does("logs", name, "--follow", timeout=660).splitlines()
        verbs.does("wait", name, "--timeout", "60")
        assert verbs.status(name)["phase"] == "succeeded"
        (summary,) = (one for one in verbs.events(name) if one["event"] == "summary")
        FIGURES.append(
            f"{launcher}: accuracy {summary['accuracy']:.5f}, by `make run` {accuracy_here:.5f}"
        )
        assert summary["accuracy"] >= 0.95
        assert abs(summary["accuracy"] - accuracy_here) <= 0.005
        assert summary["world_size"] == 4
        (last,) = (line for line in followed if '"event": "summary"' in line)
        assert last.startswith("[node 0 rank 0] {")
        assert any(line.startswith("[node 1") for line in followed)
        for option, number, start in (
            ("--rank", "0", "[node 0 rank 0] "),
            ("--node", "1", "[node 1"),
        ):
            ran = verbs.run("logs", name, option, number)
            if f"{option} {number}: job {name} has {option[2:]}s" in ran.stderr:
                # the operator deletes a worker that is still ending when the master has ended
                assert (ran.returncode, launcher, option) == (64, "pytorchjob", "--node")
                continue
            assert ran.returncode == 0, ran.stderr
            assert ran.stdout
            assert all(line.startswith(start) for line in ran.stdout.splitlines())
        folder = verbs.folder / f"saved-{launcher}"
        verbs.does("logs", name, "--save", str(folder))
        assert len([*folder.glob("*.log")]) >= (1 if launcher == "pytorchjob" else 2)
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
        victim = next(pod for pod in verbs.status(name)["pods"] if pod["node"] == 1)
        path = objects.path_of(verbs.cluster, "v1", "Pod", victim["name"])
        began = time.time()
        api.call(verbs.cluster, "DELETE", path, body={"gracePeriodSeconds": 0})

        def again() -> list[dict[str, Any]]:
            """The events of node 0 after its return: it resumed, then its first step."""
            events = [one for one in verbs.events(name) if one["time"] > began]
            resumed = [n for n, one in enumerate(events) if one.get("action") == "resumed"]
            later = events[resumed[-1] :] if resumed else []
            steps = [one for one in later if one["event"] == "step"]
            return [later[0], steps[0]] if steps else []

        resumed, first = until(again, 120, lambda: verbs.status(name))
        seconds, counted = first["time"] - began, verbs.status(name)["restarts"]
        FIGURES.append(
            f"{launcher}: first step {start:.1f} s after submission, {seconds:.1f} s after a pod's "
            f"deletion; {counted} failures counted"
        )
        assert resumed["step"] >= 25  # from a checkpoint, not from the start
        assert first["step"] == resumed["step"] + 1
        # The stand-in is as slow as this machine: there the limit depends on the start of the same job.
        own = _BACK_OFF.get(launcher, 0.0) + 3 * start
        assert seconds <= (own if verbs.standin else _AGAIN.get(launcher, 60))
        assert counted <= 1


def test_sigterm_saves_a_checkpoint(verbs: Verbs, launcher: str, claim: str) -> None:
    with submitted(verbs, launcher, endless("stopped", claim)) as name:
        trained_to(verbs, name, 30)
        job_ = jobs.get_job(verbs.cluster, name)
        first = next(pod for pod in jobs.pods(verbs.cluster, job_) if pod.node == 0)
        following = logs.LogFollower(verbs.cluster, query={"follow": "true"})
        following.add(first)
        lines: list[str] = []
        api.call(verbs.cluster, "DELETE", objects.path_of(verbs.cluster, "v1", "Pod", first.name))

        def has_ended() -> bool:
            following.drain(lines.append, seconds=0.5)
            return not following.reading

        until(has_ended, 60, list)
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
            lambda: verbs.status(name),
        )


def test_bad_configuration_is_final(verbs: Verbs, launcher: str) -> None:
    unknown = job("wrong", task="no_such_module:Task")  # only the image knows it
    with submitted(verbs, launcher, unknown) as name:
        verbs.does("wait", name, "--timeout", "300", code=64, timeout=360)
        shown = verbs.status(name)
        assert shown["phase"] == "failed"
        assert shown["restarts"] <= 2  # only the failure of each node: nothing was retried
        assert len(shown["pods"]) <= 2
        lines = verbs.does("why", name).splitlines()
        assert len(lines) <= 10
        assert "no module named 'no_such_module'" in "\n".join(lines)
        assert "log of pod" in "\n".join(lines)


def test_suspended_resumed_and_cancelled(verbs: Verbs, launcher: str, claim: str) -> None:
    with submitted(verbs, launcher, endless("paused", claim)) as name:
        before = trained_to(verbs, name, 30)
        verbs.does("scale", name, "1", code=64)  # of fixed size
        verbs.does("suspend", name)
        until(lambda: verbs.status(name)["pods"] == [], 90, lambda: verbs.status(name))
        assert verbs.status(name)["phase"] == "suspended"
        verbs.does("resume", name)
        assert trained_to(verbs, name, before + 1) > before
        verbs.does("cancel", name)
        verbs.does("wait", name, "--timeout", "60", code=143)
        until(lambda: verbs.status(name)["pods"] == [], 90, lambda: verbs.status(name))
        verbs.does("gc", "--older-than", "0")


def test_an_elastic_job_is_scaled(verbs: Verbs, launcher: str, claim: str) -> None:
    if why := launchers.find(launcher).lacks.get("nodes.min"):
        pytest.skip(why)
    values = endless("elastic", claim) | {"nodes": {"min": 1, "max": 2}}
    values["trainer"]["globalBatch"] = 24
    with submitted(verbs, launcher, values) as name:
        seen = trained_to(verbs, name, 10)
        verbs.does("scale", name, "3", code=64)
        for nodes in (2, 1):
            verbs.does("scale", name, str(nodes))
            until(lambda: ranks(verbs, name) == 2 * nodes, 120, lambda: verbs.status(name))  # noqa: B023
            seen = trained_to(verbs, name, seen + 30)
        until(lambda: len(verbs.status(name)["pods"]) == 1, 90, lambda: verbs.status(name))
        assert verbs.status(name)["phase"] == "running"


def ranks(verbs: Verbs, name: str) -> int:
    """Return the world size in the job's newest `launch` event."""
    worlds = [one["world_size"] for one in verbs.events(name) if one["event"] == "launch"]
    return worlds[-1] if worlds else 0
