"""Verbs that change a job: suspend, resume, cancel, scale, delete, gc; for every launcher."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_objects import (
    COMPLETED,
    JOBSET,
    LABELS,
    RUNNING,
    Cluster,
    Run,
    fill,
    golden,
    jobset,
    pod,
    refuse,
    submit,
)


def test_suspend_resume_delete_list_and_gc(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    path = server.path(*JOBSET, "digits")
    for verb, expected in (("suspend", True), ("resume", False)):
        assert run(config, verb, "digits")[0] == 0
        assert server.objects[path]["spec"]["suspend"] is expected
    assert [job["name"] for job in json.loads(run(config, "list", "--json")[1])] == ["digits"]
    assert run(config, "gc")[0] == 0
    assert path in server.objects
    fill(server, **COMPLETED)
    for verb in ("suspend", "resume", "cancel"):
        assert run(config, verb, "digits")[0] == 64
    assert "would delete digits" in run(config, "gc", "--dry-run")[2]
    server.put("v1", "Service", {"metadata": {"name": "digits", "labels": LABELS}})
    server.put("v1", "Service", {"metadata": {"name": "other"}})
    assert run(config, "gc")[0] == 0
    assert path not in server.objects
    assert [p for p in server.objects if "/services/" in p] == [
        server.path("v1", "Service", "other")
    ]
    code, _, err = run(config, "delete", "digits")
    assert code == 64
    assert "no muster job 'digits'" in err


def test_delete_finds_what_a_job_that_is_gone_has_left(run: Run, cluster: Cluster) -> None:
    """As after faults.ttl or `kubectl delete`."""
    server, config = cluster
    others = LABELS | {"app.kubernetes.io/instance": "other"}
    server.put("v1", "Service", {"metadata": {"name": "digits", "labels": LABELS}})
    server.put("apps/v1", "Deployment", {"metadata": {"name": "digits-board", "labels": LABELS}})
    server.put("v1", "Service", {"metadata": {"name": "other", "labels": others}})
    server.put("v1", "Pod", pod("digits-0-a", 0, phase="Running"))  # of a job that may not be read
    assert run(config, "delete", "digits")[0] == 64
    assert server.path("v1", "Service", "digits") in server.objects
    del server.objects[server.path("v1", "Pod", "digits-0-a")]
    code, _, err = run(config, "delete", "digits")
    assert (code, "deleted Service/digits" in err, "deleted Deployment/digits-board" in err) == (
        0,
        True,
        True,
    )
    assert {*server.objects} == {server.path("v1", "Service", "other")}
    code, _, err = run(config, "delete", "digits")
    assert (code, "no muster job 'digits'" in err) == (64, True)


def test_cancel_ends_a_job_and_keeps_it(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    path = server.path(*JOBSET, "digits")
    assert run(config, "cancel", "digits", "--save", str(tmp_path / "kept"))[0] == 0
    assert (tmp_path / "kept" / "digits-node-0-0.log").exists()
    assert server.objects[path]["spec"]["suspend"] is True
    assert json.loads(run(config, "list", "--json")[1])[0]["phase"] == "cancelled"
    assert run(config, "wait", "digits")[0] == 143
    assert run(config, "cancel", "digits")[0] == 64  # twice
    assert "would delete digits" in run(config, "gc", "--dry-run", "--older-than", "0")[2]
    assert run(config, "resume", "digits")[0] == 0  # the user resumes it
    assert server.objects[path]["spec"]["suspend"] is False
    assert json.loads(run(config, "list", "--json")[1])[0]["phase"] == "running"


def test_gc_passes_over_an_end_that_is_no_time(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    odd = jobset(**RUNNING)
    odd["metadata"] |= {"annotations": {"muster/cancelled": "yesterday"}}
    server.put(*JOBSET, odd)
    code, _, err = run(config, "gc", "--older-than", "0", "--dry-run")
    assert (code, "would delete" in err) == (0, False)


def test_a_job_that_an_object_of_another_tool_owns_is_in_the_list(
    run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    for kind in ("Workflow", "TrainJob"):
        owned = jobset({}, f"of-{kind.lower()}", **COMPLETED)
        owned["metadata"] |= {"ownerReferences": [{"kind": kind, "name": "w", "uid": "1"}]}
        server.put(*JOBSET, owned)
    found = json.loads(run(config, "list", "--json")[1])
    assert [one["name"] for one in found] == ["of-workflow"]
    assert "would delete of-workflow" in run(config, "gc", "--dry-run")[2]


def test_a_queued_job_is_stopped_by_its_workload(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    queued = jobset(**RUNNING)
    queued["metadata"] |= {"labels": LABELS | {"kueue.x-k8s.io/queue-name": "team"}, "uid": "u1"}
    server.put(*JOBSET, queued)
    for verb in ("suspend", "cancel"):
        code, _, err = run(config, verb, "digits")
        assert (code, "has not made its Workload yet" in err) == (69, True)
        # what could not be stopped still runs
        assert json.loads(run(config, "list", "--json")[1])[0]["phase"] == "running"
    kueue = ("kueue.x-k8s.io/v1beta2", "Workload")
    metadata = {"name": "w", "labels": {"kueue.x-k8s.io/job-uid": "u1"}}
    server.put(*kueue, {"metadata": metadata, "spec": {"active": True}})
    for verb, active in (("suspend", False), ("resume", True), ("cancel", False)):
        assert run(config, verb, "digits")[0] == 0
        assert server.objects[server.path(*kueue, "w")]["spec"]["active"] is active
    # Kueue would undo it within the second
    assert "suspend" not in server.objects[server.path(*JOBSET, "digits")]["spec"]


def test_volcano_is_changed_by_a_command(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    assert run(config, "submit", str(golden("volcano")))[0] == 0
    for verb, action in (("suspend", "AbortJob"), ("resume", "ResumeJob"), ("cancel", "AbortJob")):
        assert run(config, verb, "digits-ddp")[0] == 0
        name = f"digits-ddp-{action.lower()}"
        command = server.remove(server.path("bus.volcano.sh/v1alpha1", "Command", name))
        assert command["action"] == action
        assert (command["target"]["kind"], command["target"]["uid"]) == ("Job", "uid-digits-ddp")


ELASTIC = {
    "name": "elastic",
    "nodes": {"min": 2, "max": 4},
    "trainer": {"globalBatch": 48},
}
# launcher, and the fields with the number of nodes, when it is 3
SCALED: dict[str, tuple[str, list[Any]]] = {
    "job": ("/jobs/elastic", ["spec", "completions"]),
    "jobset": (
        "/jobsets/elastic",
        ["spec", "replicatedJobs", 0, "template", "spec", "parallelism"],
    ),
    "pytorchjob": (
        "/pytorchjobs/elastic",
        ["spec", "pytorchReplicaSpecs", "Worker", "replicas"],
    ),
    "volcano": ("/jobs/elastic", ["spec", "tasks", 0, "replicas"]),
}


@pytest.mark.parametrize("launcher", SCALED)
def test_scale_an_elastic_job(launcher: str, run: Run, cluster: Cluster, tmp_path: Path) -> None:
    server, config = cluster
    submit(run, cluster, tmp_path, launcher, **ELASTIC)
    for wrong in ("1", "5"):
        code, _, err = run(config, "scale", "elastic", wrong)
        assert (code, f"takes 2 to 4 nodes, not {wrong}" in err) == (64, True)
    assert run(config, "scale", "elastic", "3")[0] == 0
    path, keys = SCALED[launcher]
    found: Any = next(o for place, o in server.objects.items() if place.endswith(path))
    for key in keys:
        found = found[key]
    assert found == 3


def test_scale_goes_to_the_child_where_the_jobset_may_not_change(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    server, config = cluster
    submit(run, cluster, tmp_path, "jobset", **ELASTIC)
    child = {"metadata": {"name": "elastic-node-0"}, "spec": {"completions": 4, "parallelism": 4}}
    server.put("batch/v1", "Job", child)
    refuse(server, 422, "field is immutable", method="PATCH", at="/jobsets/")
    assert run(config, "scale", "elastic", "3")[0] == 0
    spec = server.objects[server.path("batch/v1", "Job", "elastic-node-0")]["spec"]
    assert spec == {"completions": 3, "parallelism": 3}


@pytest.mark.parametrize("launcher", ["job", "jobset", "pytorchjob", "trainjob", "volcano"])
def test_a_job_of_fixed_size_is_not_scaled(launcher: str, run: Run, cluster: Cluster) -> None:
    _, config = cluster
    assert run(config, "submit", str(golden(launcher)))[0] == 0
    code, _, err = run(config, "scale", "digits-ddp", "2")
    assert code == 64
    assert "has a fixed size" in err


def test_a_manifest_for_another_namespace_is_refused(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    from tests.rendering import job, render

    server, config = cluster
    rendered = tmp_path / "job.yaml"
    rendered.write_text(render(job(namespace="elsewhere"), "job").text)
    code, _, err = run(config, "submit", str(rendered))
    assert (code, "--namespace elsewhere" in err) == (64, True)
    assert [path for method, path in server.requests if method == "PATCH"] == []
