"""Every launcher's status fields of a job, as one state."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli.tables import progress_text
from k8s.cluster.observe.job_progress import newest_events
from k8s.cluster.state import CANCELLED, exit_code, find_job_manifest, pod, with_notes
from k8s.launchers import job_kinds
from k8s.plan.job_kind import JobKind, Phase, State
from trainer.config.exits import Exit, Fault

KINDS: dict[str, JobKind] = {kind.launcher: kind for kind in job_kinds()}


def true(name: str, **more: str) -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": "True", **more}]}


NOT_YET = {"conditions": [{"type": "Failed", "status": "False"}]}

# launcher, spec, status, phase, restarts
CASES = [
    ("job", {}, {}, Phase.PENDING, 0),
    ("job", {}, {"ready": 2, "failed": 1}, Phase.RUNNING, 1),
    ("job", {}, {"ready": 0, "failed": 1}, Phase.RESTARTING, 1),
    ("job", {}, {"ready": 0, "active": 2, "terminating": 1}, Phase.RESTARTING, 0),
    ("job", {}, {"ready": 0, "succeeded": 2}, Phase.RUNNING, 0),
    ("job", {"suspend": True}, true("Suspended"), Phase.SUSPENDED, 0),
    ("job", {}, true("Complete"), Phase.SUCCEEDED, 0),
    ("job", {}, true("Failed", reason="PodFailurePolicy"), Phase.FAILED, 0),
    ("jobset", {}, {}, Phase.PENDING, 0),
    ("jobset", {}, {"restarts": 1, "replicatedJobsStatus": [{"ready": 1}]}, Phase.RUNNING, 1),
    ("jobset", {}, {"restarts": 1, "replicatedJobsStatus": [{"ready": 0}]}, Phase.RESTARTING, 1),
    ("jobset", {"suspend": True}, {}, Phase.SUSPENDED, 0),
    ("jobset", {}, true("Completed"), Phase.SUCCEEDED, 0),
    ("jobset", {}, true("Failed"), Phase.FAILED, 0),
    ("jobset", {}, NOT_YET, Phase.PENDING, 0),
    ("pytorchjob", {}, true("Created"), Phase.PENDING, 0),
    ("pytorchjob", {}, true("Running"), Phase.RUNNING, 0),
    ("pytorchjob", {}, true("Restarting", message="master"), Phase.RESTARTING, 0),
    ("pytorchjob", {"runPolicy": {"suspend": True}}, {}, Phase.SUSPENDED, 0),
    ("pytorchjob", {}, true("Succeeded"), Phase.SUCCEEDED, 0),
    (
        "pytorchjob",
        {},
        true("Failed") | {"replicaStatuses": {"Worker": {"failed": 2}}},
        Phase.FAILED,
        2,
    ),
    ("trainjob", {}, {}, Phase.PENDING, 0),
    ("trainjob", {}, {"jobsStatus": [{"name": "node", "ready": 1}]}, Phase.RUNNING, 0),
    ("trainjob", {"suspend": True}, {}, Phase.SUSPENDED, 0),
    ("trainjob", {}, true("Complete"), Phase.SUCCEEDED, 0),
    ("trainjob", {}, true("Failed"), Phase.FAILED, 0),
    ("volcano", {}, {}, Phase.PENDING, 0),
    ("volcano", {}, {"state": {"phase": "Running"}}, Phase.RUNNING, 0),
    ("volcano", {}, {"state": {"phase": "Restarting"}, "retryCount": 3}, Phase.RESTARTING, 3),
    ("volcano", {}, {"state": {"phase": "Aborted"}}, Phase.SUSPENDED, 0),
    ("volcano", {}, {"state": {"phase": "Completed"}}, Phase.SUCCEEDED, 0),
    ("volcano", {}, {"state": {"phase": "Failed"}}, Phase.FAILED, 0),
]


@pytest.mark.parametrize(("launcher", "spec", "status", "phase", "restarts"), CASES)
def test_a_job_is_in_one_phase(
    launcher: str, spec: Any, status: Any, phase: Phase, restarts: int
) -> None:
    state = KINDS[launcher].read({"metadata": {"name": "j"}, "spec": spec, "status": status})
    assert (state.phase, state.restarts) == (phase, restarts)


RECORDED: dict[str, Any] = yaml.load(
    Path(__file__).with_name("recorded.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)


@pytest.mark.parametrize("one", RECORDED["jobs"], ids=lambda one: one["source"][:40])
def test_what_controllers_really_wrote_is_read(one: Any) -> None:
    metadata = {"name": "j", "labels": one.get("labels", {})}
    found = {"metadata": metadata, "spec": one.get("spec", {}), "status": one["status"]}
    state = with_notes(KINDS[one["launcher"]].read(found), found)
    assert (state.phase, state.restarts) == (one["is"], one.get("restarts", 0))
    assert one.get("says", "") in state.reason
    if "ended" in one:
        assert state.ended_at == one["ended"]


def test_every_launcher_was_recorded_at_its_ends() -> None:
    seen = {(one["launcher"], one["is"]) for one in RECORDED["jobs"]}
    assert seen >= {(launcher, "failed") for launcher in KINDS}
    assert seen >= {(launcher, "suspended") for launcher in KINDS if launcher != "volcano"}


@pytest.mark.parametrize("one", RECORDED["pods"], ids=lambda one: one["source"][:40])
def test_what_kubelets_really_wrote_is_read(one: Any) -> None:
    found = pod({"metadata": {"name": "p"}, "status": one["status"]}, KINDS["job"])
    assert found.reason.startswith(one["says"])
    assert list(found.codes) == one.get("codes", [])


@pytest.mark.parametrize("code", [code for code in Exit if code is not Exit.DONE])
@pytest.mark.parametrize("launcher", KINDS)
def test_a_failed_job_has_the_code_of_its_pods(launcher: str, code: Exit) -> None:
    """Each of our exit codes, as a pod has it; in a PyTorchJob some are shifted."""
    failed = next(o for o in RECORDED["jobs"] if (o["launcher"], o["is"]) == (launcher, "failed"))
    state = KINDS[launcher].read({"metadata": {"name": "j"}, "status": failed["status"]})
    shift = 128 if launcher == "pytorchjob" and code in (Exit.PEER, Exit.CODE, Exit.MACHINE) else 0
    ends = {"state": {"terminated": {"exitCode": code + shift, "reason": "Error"}}}
    status = {"phase": "Failed", "containerStatuses": [ends]}
    pods = [pod({"metadata": {"name": "p"}, "status": status}, KINDS[launcher])]
    assert exit_code(state, pods) is code


@pytest.mark.parametrize(
    ("trainer", "sidecar", "code", "says"),
    [
        (64, 0, Exit.CONFIG, "exit 64 (Error)"),
        (64, 1, Exit.CONFIG, "exit 64 (Error)"),
        (0, 1, Exit.CODE, "exit 0 (Error)"),
        (None, 1, Exit.CODE, "exit 1 (Error)"),
    ],
)
def test_the_trainer_speaks_for_its_pod_whatever_other_containers_are_called(
    trainer: int | None, sidecar: int, code: Exit, says: str
) -> None:
    """Kubernetes sorts the states by name."""

    def ended(name: str, code: int | None) -> dict[str, Any]:
        end = {"terminated": {"exitCode": code, "reason": "Error"}}
        return {"name": name, "state": end if code is not None else {"running": {}}}

    variables = [{"name": "PET_NPROC_PER_NODE", "value": "1"}]
    spec = {"containers": [{"name": "pytorch", "env": variables}, {"name": "side"}]}
    status = {"containerStatuses": [ended("pytorch", trainer), ended("side", sidecar)]}
    found = pod({"metadata": {"name": "p"}, "spec": spec, "status": status}, KINDS["pytorchjob"])
    assert found.reason == says
    assert exit_code(State(Phase.FAILED), [found]) is code


@pytest.mark.parametrize(
    ("launcher", "labels", "node"),
    [
        ("job", {"batch.kubernetes.io/job-completion-index": "3"}, 3),
        ("jobset", {"batch.kubernetes.io/job-completion-index": "3"}, 3),
        ("trainjob", {"batch.kubernetes.io/job-completion-index": "3"}, 3),
        ("volcano", {"volcano.sh/task-index": "3"}, 3),
        ("pytorchjob", {"training.kubeflow.org/replica-type": "master"}, 0),
        (
            "pytorchjob",
            {
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": "2",
            },
            3,
        ),
        ("job", {}, None),
    ],
)
def test_a_pod_is_a_node(launcher: str, labels: dict[str, str], node: int | None) -> None:
    found = pod({"metadata": {"name": "p", "labels": labels}}, KINDS[launcher])
    assert found.node == node


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "ImagePullBackOff",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]},
            "0/3 nodes",
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 64, "reason": "Error"}}}]},
            "exit 64 (Error)",
        ),
        ({"phase": "Running"}, ""),
    ],
)
def test_a_pod_says_what_keeps_it(status: Any, reason: str) -> None:
    assert pod({"metadata": {"name": "p"}, "status": status}, KINDS["job"]).reason == reason


def test_the_one_job_among_manifests_is_found() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job"}
    service = {"apiVersion": "v1", "kind": "Service"}
    assert find_job_manifest([service, job])[0].launcher == "job"
    for wrong in ([], [service], [job, job]):
        with pytest.raises(Fault, match="jobs among the manifests"):
            find_job_manifest(wrong)


def test_progress_is_the_newest_step_among_other_words() -> None:
    step = (
        '{"event": "step", "step": %d, "steps": 4, "samples": 8, "samples_per_s": 2.0, "loss": 1}'
    )
    lines = ["launch: hello", step % 1, '{"event": "eval"}', step % 2, "[1]", "{broken"]
    found = newest_events(lines).progress
    assert found is not None
    assert (found.step, found.seconds_left) == (2, 4.0)
    assert newest_events(["nothing"]).progress is None


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"step": 3, "loss": 0.5}, "step 3, loss 0.5"),
        ({"step": 3}, "step 3"),
        ({"step": 3, "samples_per_s": 90.0}, "step 3, 90 samples/s"),
        ({"step": 3, "steps": 9, "samples_per_s": 90.0}, "step 3 of 9, 90 samples/s"),
        ({"step": 3, "samples_per_s": 12345.6}, "step 3, 12,346 samples/s"),
        (
            {
                "step": 3,
                "goodput": 0.5,
                "spent_s": {"training": 5, "start": 4, "[red]": 1, "a": []},
            },
            "step 3, goodput 50% (start 44%)",
        ),
        ({"step": 3, "goodput": 0.5, "spent_s": "all"}, "step 3, goodput 50%"),
        ({"step": "third", "loss": 0.5}, None),
        ({}, None),
    ],
)
def test_a_program_of_ones_own_tells_what_it_tells(event: dict[str, Any], text: str | None) -> None:
    found = newest_events([json.dumps({"event": "step", **event})]).progress
    assert (progress_text(found) if found else None) == text


@pytest.mark.parametrize(
    ("status", "phase"),
    [(true("Complete"), Phase.SUCCEEDED), (true("Failed"), Phase.FAILED), ({}, Phase.CANCELLED)],
)
def test_a_job_that_has_ended_is_not_shown_as_cancelled(
    status: dict[str, Any], phase: Phase
) -> None:
    """The last pod may end while the job is being stopped."""
    cancelled = {"annotations": {CANCELLED: "2026-01-01T00:00:00Z"}}
    job = {"metadata": cancelled, "spec": {"suspend": phase is Phase.CANCELLED}, "status": status}
    assert with_notes(KINDS["job"].read(job), job).phase is phase


@pytest.mark.parametrize(
    ("text", "procs"), [("2", 2), ("auto", None), ("9" * 5000, None)], ids=["2", "auto", "long"]
)
def test_ranks_of_a_pod(text: str, procs: int | None) -> None:
    """Python refuses to read a number of more than 4,300 digits."""
    container = {"name": "trainer", "env": [{"name": "PET_NPROC_PER_NODE", "value": text}]}
    found = {"metadata": {"name": "a"}, "spec": {"containers": [container]}}
    assert pod(found, KINDS["job"]).procs == procs
