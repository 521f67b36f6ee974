"""Jobs inside an AppWrapper: the verbs act on the wrapper and show the state of the job in it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli.command import main
from k8s.cluster.wrapped_job import WRAPPER
from tests.cluster_objects import (
    COMPLETED,
    FAILED,
    JOBSET,
    LABELS,
    Cluster,
    Run,
    ended,
    pod,
    submit,
)
from tests.rendering import job, render
from tests.standin.server import Answer, Server
from tests.unit.k8s.cluster.test_rbac import Allowed, asked, by, granted

VALUES = job(name="digits", nodes=2, appWrapper=True)


@pytest.fixture
def submitted(run: Run, cluster: Cluster, tmp_path: Path) -> Cluster:
    submit(run, cluster, tmp_path, "jobset", **VALUES)
    return cluster


def control(
    server: Server,
    phase: str,
    made: Any = None,
    *,
    suspend: bool | None = None,
    **status: Any,
) -> None:
    """Do what the wrapper's controller does: set a phase, and make the job with the status `made`."""
    path = server.path(*WRAPPER, "digits")
    found = server.objects[path]
    spec = found["spec"] | ({} if suspend is None else {"suspend": suspend})
    server.store(path, found | {"spec": spec, "status": {"phase": phase, **status}})
    if made is not None:
        owner = [{"kind": "AppWrapper", "name": "digits"}]
        metadata = {"name": "digits", "labels": LABELS, "ownerReferences": owner}
        server.put(*JOBSET, {"metadata": metadata, "spec": {}, "status": made})


def test_submit_tries_what_is_wrapped_and_applies_the_wrapper(submitted: Cluster) -> None:
    server, _ = submitted
    writes = [path for method, path in server.requests if method == "PATCH"]
    tried = [path for path in writes if "dryRun=All" in path]
    assert [path.split("?")[0].split("/")[-2] for path in tried] == ["appwrappers", "jobsets"]
    applied = [path.split("?")[0] for path in writes if path not in tried]
    wrapper, secret = (
        server.path(*WRAPPER, "digits"),
        server.path("v1", "Secret", "digits-rendezvous"),
    )
    # made before the wrapper makes the job, and then given to the wrapper
    assert applied == [secret, wrapper, secret]
    assert {*server.objects} == {wrapper, secret}
    (owner,) = server.objects[secret]["metadata"]["ownerReferences"]
    assert owner["kind"] == "AppWrapper"


SICK = "Found 1 failed pods"
UNWELL = {"type": "Unhealthy", "status": "True", "message": SICK}
GONE = {"type": "DeletingResources", "lastTransitionTime": "2020-01-01T00:00:00Z"}
READY = {"replicatedJobsStatus": [{"ready": 1}], "restarts": 1}
STOPPED = ("suspended", 1, "spec.suspend of its AppWrapper")
# status of the wrapper, status of the job in it, other fields; phase, restarts, reason
CASES: list[tuple[str, Any, dict[str, Any], tuple[str, int, str]]] = [
    ("", None, {}, ("pending", 0, "")),
    ("Suspended", None, {"suspend": True}, ("suspended", 0, STOPPED[2])),
    ("Resuming", None, {}, ("pending", 0, "")),
    ("Resuming", {}, {}, ("pending", 0, "")),
    ("Running", READY, {}, ("running", 1, "")),
    ("Running", READY, {"suspend": True}, STOPPED),
    ("Suspending", READY, {"suspend": True}, STOPPED),
    ("Resetting", None, {"resettingCount": 2, "conditions": [UNWELL]}, ("restarting", 2, SICK)),
    ("Running", READY, {"resettingCount": 2}, ("running", 3, "")),
    ("Running", COMPLETED, {}, ("succeeded", 0, "")),  # the wrapper reports it later
    ("Running", FAILED, {"conditions": [UNWELL]}, ("failed", 0, "FailedJobs")),
    ("Succeeded", COMPLETED, {}, ("succeeded", 0, "")),
    ("Failed", FAILED, {"conditions": [UNWELL]}, ("failed", 0, "FailedJobs")),
    ("Failed", None, {"conditions": [UNWELL, GONE]}, ("failed", 0, SICK)),
    ("Terminating", READY, {}, ("running", 1, "")),
]


@pytest.mark.parametrize(("phase", "made", "more", "expected"), CASES)
def test_both_together_are_in_one_phase(
    phase: str,
    made: Any,
    more: dict[str, Any],
    expected: tuple[str, int, str],
    run: Run,
    submitted: Cluster,
) -> None:
    server, config = submitted
    control(server, phase, made, **more)
    shown = json.loads(run(config, "status", "digits", "--json")[1])
    assert (shown["phase"], shown["restarts"], shown["reason"]) == expected
    assert shown["launcher"] == "jobset"
    assert json.loads(run(config, "list", "--json")[1]) == [
        {key: shown[key] for key in ("name", "launcher", "phase", "reason", "restarts", "ended_at")}
    ]
    if expected[0] in ("succeeded", "failed"):
        assert run(config, "suspend", "digits")[0] == 64
    if made is COMPLETED or GONE in more.get("conditions", []):
        assert shown["ended_at"] == "2020-01-01T00:00:00Z"


def test_the_wrapper_is_what_is_stopped_resumed_and_deleted(run: Run, submitted: Cluster) -> None:
    server, config = submitted
    control(server, "Running", READY)
    wrapper, inner = server.path(*WRAPPER, "digits"), server.path(*JOBSET, "digits")
    for verb, stopped in (("suspend", True), ("resume", False), ("cancel", True)):
        assert run(config, verb, "digits")[0] == 0
        assert server.objects[wrapper]["spec"]["suspend"] is stopped
        assert server.objects[inner]["spec"] == {}  # its controller would undo it
    assert run(config, "wait", "digits")[0] == 143
    assert run(config, "resume", "digits")[0] == 0
    assert json.loads(run(config, "list", "--json")[1])[0]["phase"] == "running"
    code, _, err = run(config, "delete", "digits")
    assert (code, "deleted AppWrapper/digits" in err) == (0, True)
    assert wrapper not in server.objects


def test_a_queued_wrapper_is_stopped_by_its_workload(run: Run, submitted: Cluster) -> None:
    server, config = submitted
    path = server.path(*WRAPPER, "digits")
    found = server.objects[path]
    labels = found["metadata"]["labels"] | {"kueue.x-k8s.io/queue-name": "team"}
    held = {"spec": found["spec"] | {"suspend": True}, "status": {"phase": "Suspended"}}
    server.store(path, found | held | {"metadata": found["metadata"] | {"labels": labels}})
    shown = json.loads(run(config, "status", "digits", "--json")[1])
    assert (shown["phase"], shown["reason"]) == ("suspended", "waits in queue team of Kueue")
    kueue = ("kueue.x-k8s.io/v1beta2", "Workload")
    server.put(
        *kueue, {"metadata": {"name": "w", "labels": {"kueue.x-k8s.io/job-uid": "uid-digits"}}}
    )
    assert run(config, "cancel", "digits")[0] == 0
    assert server.objects[server.path(*kueue, "w")]["spec"]["active"] is False


@pytest.mark.parametrize(("made", "expected"), [(FAILED, 72), (None, 72), (COMPLETED, 0)])
def test_wait_ends_with_the_code_of_the_pods(
    made: Any, expected: int, run: Run, submitted: Cluster
) -> None:
    server, config = submitted
    control(server, "Succeeded" if made is COMPLETED else "Failed", made)
    server.put("v1", "Pod", pod("p", 0, **ended(expected)))
    assert run(config, "wait", "digits")[0] == expected


def test_a_wrapper_that_has_ended_is_not_submitted_over(
    run: Run, submitted: Cluster, tmp_path: Path
) -> None:
    server, config = submitted
    control(server, "Failed")
    code, _, err = run(config, "submit", str(tmp_path / "rendered.yaml"))
    assert (code, "job digits already exists and has ended (failed)" in err) == (64, True)


def test_its_role_is_enough(run: Run, cluster: Cluster, tmp_path: Path, capsys: Any) -> None:
    server, config = cluster
    file, rendered = tmp_path / "job.yaml", tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump(VALUES))
    rendered.write_text(render(VALUES, "jobset").text)
    assert main([str(file), "--launcher", "jobset", "--rbac", "user:jane"]) == 0
    allowed = granted(capsys.readouterr().out, ["Role"])

    def ask(method: str, target: str) -> Answer | None:
        wanted: Allowed = asked(server, method, target)
        lacking = {one for one in wanted if not by(allowed, {one})}
        return (403, {}, json.dumps({"message": f'User "jane": {lacking}'})) if lacking else None

    server.answer = ask
    assert run(config, "submit", str(rendered))[0] == 0
    control(server, "Running", READY)
    for verb in ("status", "suspend", "resume", "cancel", "wait", "delete"):
        code, _, err = run(config, verb, "digits")
        assert code == (143 if verb == "wait" else 0), err
