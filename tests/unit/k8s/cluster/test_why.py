"""`python -m k8s why NAME`: with recorded states of pods and jobs, and with real logs of launchers."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster_objects import (
    COMPLETED,
    FAILED,
    JOBSET,
    LABELS,
    RUNNING,
    Cluster,
    Run,
    ended,
    jobset,
    pod,
    refuse,
)
from tests.conftest import QUICK, ROOT
from tests.standin.server import Server
from tests.why.scripts import SCRIPTS

POD = "digits-node-0-1"


def event(reason: str, message: str, about: str = POD, kind: str = "Pod") -> dict[str, Any]:
    return {
        "metadata": {"name": f"{about}.{reason}".lower()},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"name": about, "kind": kind},
        "lastTimestamp": "2026-01-01T00:00:05Z",
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": state}]}


def unschedulable(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"phase": "Pending", "conditions": [condition | {"message": message}]}


def terminated(code: int, of_container: str, /, **status: Any) -> dict[str, Any]:
    end = {"exitCode": code, "reason": of_container, "finishedAt": "2026-01-01T00:00:09Z"}
    return {
        "phase": "Failed",
        "containerStatuses": [{"name": "trainer", "state": {"terminated": end}}],
        **status,
    }


def disrupted(reason: str, message: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return terminated(143, "Error", conditions=[condition])


CREATING = waiting("ContainerCreating")
EARLIER = {"lastTimestamp": "2026-01-01T00:00:03Z"}

# By cause: the status of the second pod and the cluster's events, as Kubernetes 1.34 writes them.
PODS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "image": (
        waiting("ImagePullBackOff", 'Back-off pulling image "registry.example/muster:1.1"'),
        [event("Failed", 'Failed to pull image "registry.example/muster:1.1": not found')],
    ),
    "no room": (
        unschedulable("0/4 nodes are available: 4 Insufficient nvidia.com/gpu. preemption: 0/4"),
        [event("FailedScheduling", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.")],
    ),
    "volume claim": (
        unschedulable("0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
        [],
    ),
    "volume mount": (
        CREATING | {"startTime": "2026-01-01T00:00:04Z"},
        [
            event("FailedScheduling", "0/4 nodes are available") | EARLIER,
            event(
                "FailedAttachVolume", 'Multi-Attach error for volume "pvc-1": already used by pods'
            ),
        ],
    ),
    "missing object": (
        waiting("CreateContainerConfigError", 'secret "digits-rendezvous" not found'),
        [],
    ),
    "missing object, mounted": (
        CREATING,
        [event("FailedMount", 'MountVolume.SetUp failed for volume "s3": secret "s3" not found')],
    ),
    "no program": (
        terminated(128, "StartError"),
        [event("Failed", 'exec: "python": executable file not found in $PATH: unknown')],
    ),
    "sandbox": (CREATING, [event("FailedCreatePodSandBox", "failed to set up sandbox network")]),
    "device plugin": (
        terminated(1, "Error", reason="UnexpectedAdmissionError", message="Allocate failed"),
        [],
    ),
    "device plugin, driver": (
        waiting("RunContainerError", "nvidia-container-cli: unsatisfied condition: cuda>=12.8"),
        [],
    ),
    "host memory": (terminated(137, "OOMKilled"), []),
    "evicted": (
        terminated(137, "Error", reason="Evicted", message="The node was low on resource: memory."),
        [],
    ),
    "preempted": (disrupted("PreemptionByScheduler", "default-scheduler: preempting"), []),
    "node lost": (
        terminated(255, "Error", reason="NodeShutdown", message="Pod was terminated by the node"),
        [],
    ),
    "liveness": (
        terminated(137, "Error"),
        [event("Unhealthy", "Liveness probe failed: rank 1: no step for 3600 s")],
    ),
}


def fill(server: Server, status: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """A JobSet with two pods: the first one runs, or has lost the second."""
    has_failed = status["phase"] == "Failed"
    server.put(*JOBSET, jobset(**(FAILED if has_failed else RUNNING)))
    first = ended(69) if has_failed else {"phase": "Running"}
    server.put("v1", "Pod", pod("digits-node-0-0", 0, **first))
    server.put("v1", "Pod", pod(POD, 1, **status))
    for one in events:
        server.put("v1", "Event", one)


def ask(run: Run, config: Path) -> dict[str, str]:
    code, out, err = run(config, "why", "digits")
    assert code == 0, err
    head, *lines = out.splitlines()
    assert len(lines) < 10
    return {"head": head} | dict(line.split(maxsplit=1) for line in reversed(lines))


@pytest.mark.parametrize("cause", PODS)
def test_what_a_cluster_says_of_a_pod(cause: str, run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, *PODS[cause])
    found = ask(run, config)
    assert found["cause"].endswith(f"({cause.partition(',')[0]})"), found
    assert POD in found["first"]
    assert found["evidence"].endswith("]")  # its source


# By cause: kind and name of an object that a controller made for the job, and its status or events.
CHILDREN = {
    "pod quota": (
        "batch/v1",
        "Job",
        "FailedCreate",
        'pods "digits" is forbidden: exceeded quota: lab',
    ),
    "pod security": (
        *("batch/v1", "Job", "FailedCreate"),
        'pods "digits" is forbidden: violates PodSecurity "restricted:latest": privileged',
    ),
    "limit range": (
        *("batch/v1", "Job", "FailedCreate"),
        "maximum memory usage per Container is 4Gi, but limit is 8Gi",
    ),
    "admission": (
        *("batch/v1", "Job", "FailedCreate"),
        'admission webhook "policy.example" denied the request: no owner label',
    ),
}


@pytest.mark.parametrize("cause", CHILDREN)
def test_why_no_pod_was_made(cause: str, run: Run, cluster: Cluster) -> None:
    server, config = cluster
    api_version, kind, reason, message = CHILDREN[cause]
    job = jobset(**RUNNING)
    job["metadata"]["uid"] = "1-2-3"
    server.put(*JOBSET, job)
    owner = {"apiVersion": JOBSET[0], "kind": "JobSet", "name": "digits", "uid": "1-2-3"}
    server.put(
        api_version, kind, {"metadata": {"name": "digits-node-0", "ownerReferences": [owner]}}
    )
    server.put(api_version, kind, {"metadata": {"name": "digits-of-another"}})
    server.put("v1", "Event", event(reason, message, "digits-node-0", kind))
    other = event("FailedCreate", "exec format error", "digits-of-another", kind)
    server.put("v1", "Event", other | {"lastTimestamp": "2026-01-01T00:00:01Z"})
    found = ask(run, config)
    assert found["cause"].endswith(f"({cause})"), found
    assert found["first"].startswith("Job digits-node-0")


def test_why_kueue_does_not_admit_it(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    job = jobset({"suspend": True}, **RUNNING)
    job["metadata"] |= {"uid": "1-2-3"}
    job["metadata"]["labels"] = LABELS | {"kueue.x-k8s.io/queue-name": "research"}
    server.put(*JOBSET, job)
    message = (
        "couldn't assign flavors to pod set node: insufficient unused quota for cpu in flavor big"
    )
    condition = {
        "type": "QuotaReserved",
        "status": "False",
        "reason": "Pending",
        "message": message,
    }
    owner = {"kind": "JobSet", "name": "digits", "uid": "1-2-3"}
    workload = {"name": "jobset-digits-1", "ownerReferences": [owner]}
    status = {"conditions": [condition | {"lastTransitionTime": "2026-01-01T00:00:05Z"}]}
    found = {"metadata": workload, "status": status}
    server.put("kueue.x-k8s.io/v1beta2", "Workload", found)
    told = ask(run, config)
    assert told["cause"].endswith("(queue)"), told
    assert "insufficient unused quota for cpu in flavor big" in told["evidence"]
    # Later it runs. Volcano's PodGroup keeps such a condition, and events stay for an hour.
    server.put("v1", "Event", event("Pending", message, "jobset-digits-1", "Workload"))
    ran = terminated(137, "OOMKilled", startTime="2026-01-01T00:00:06Z")
    server.put("v1", "Pod", pod(POD, 1, **ran))
    server.put(*JOBSET, job | {"spec": {}, "status": FAILED})
    assert ask(run, config)["cause"].endswith("(host memory)")


def test_a_deadline(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, terminated(143, "Error"), [])
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
    message = "Job was active longer than specified deadline"
    server.put(*JOBSET, jobset(conditions=[failed | {"message": message}]))
    assert ask(run, config)["cause"].endswith("(deadline)")


def test_a_job_that_runs_and_one_that_has_succeeded_have_no_cause(
    run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    server.put(*JOBSET, jobset(**RUNNING))
    server.put("v1", "Pod", pod(POD, 1, phase="Running"))
    # This delayed the start, but no longer matters.
    server.put("v1", "Event", event("FailedScheduling", "0/4 nodes are available"))
    assert ask(run, config)["cause"] == "pods, events and logs show no failure"
    server.put(*JOBSET, jobset(**COMPLETED))
    assert list(ask(run, config)) == ["head"]


def test_a_log_that_cannot_be_read_is_mentioned_and_hides_nothing(
    run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    fill(server, terminated(137, "OOMKilled"), [])
    refuse(server, 500, at="/log")
    code, out, _ = run(config, "--timeout", "1", "why", "digits")
    assert code == 0
    assert "(host memory)" in out
    assert out.splitlines()[-1].startswith("unread")


def test_of_a_container_that_ended_twice_the_newer_end_counts(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    status = terminated(137, "OOMKilled")
    before = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:00:03Z"}
    status["containerStatuses"][0]["lastState"] = {"terminated": before}
    fill(server, status, [])
    server.logs[POD] = "step 7\n"
    server.logs[f"{POD}.previous"] = "OSError: [Errno 98] Address already in use\n"
    assert ask(run, config)["cause"].endswith("(host memory)")


def test_a_failing_setup_is_shown_with_what_it_wrote(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    end = {"exitCode": 127, "reason": "Error", "finishedAt": "2026-01-01T00:00:03Z"}
    status = waiting("PodInitializing") | {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "setup", "state": {"terminated": end}}],
    }
    fill(server, status, [])
    server.logs[POD] = "installing\nbash: line 1: pipp: command not found\n"
    found = ask(run, config)
    assert "pipp: command not found" in found["evidence"]
    assert "container setup" in found["evidence"]
    assert run(config, "logs", "digits", "--node", "1")[1].startswith("[node 1] installing\n")
    asked = {path.partition("container=")[2].split("&")[0] for _, path in server.requests} - {""}
    assert asked == {"setup"}


def test_the_log_of_a_sidecar_is_not_shown_for_the_trainers(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    end = {"exitCode": 143, "reason": "Error", "finishedAt": "2026-01-01T00:00:10Z"}
    sidecar = [{"name": "proxy", "state": {"terminated": end}}]
    fill(server, terminated(70, "Error", initContainerStatuses=sidecar), [])
    server.logs[POD] = "step 7\n"
    assert run(config, "logs", "digits", "--node", "1")[0] == 0
    asked = {path.partition("container=")[2].split("&")[0] for _, path in server.requests} - {""}
    assert asked == {"trainer"}


# Settings that the launcher refuses before the first rank starts and before there is a run folder.
REFUSED = {
    "batch or mesh": {"TRAINER_MODE": "hsdp", "TRAINER_MESH": "dp_shard=3"},
    "setting": {"TRAINER_LR": "-1"},
    "no devices": {"TRAINER_DEVICES": "99"},
    "data": {"TRAINER_TASK": "cifar10", "TRAINER_DATA": "/no/such/folder"},
}


def log_of(cluster: Server, stderr: str, code: int) -> None:
    """Use a launcher's output as the log of the second pod."""
    fill(cluster, terminated(code, "Error"), [])
    cluster.logs[POD] = stderr


@pytest.mark.slow
@pytest.mark.parametrize("cause", REFUSED)
def test_what_a_launcher_wrote_into_the_log_of_its_pod(
    cause: str, run: Run, cluster: Cluster, start: Any
) -> None:
    server, config = cluster
    env = QUICK | {"PET_NPROC_PER_NODE": "2"} | REFUSED[cause]
    ended = start("-m", "trainer.launch", **env).end()
    log_of(server, ended.stderr, ended.code)
    found = ask(run, config)
    assert found["cause"].endswith(f"({cause})"), found
    assert f"[log of pod {POD}]" in found["evidence"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_script_that_fails_in_a_pod(
    ranks: str, run: Run, cluster: Cluster, start: Any, tmp_path: Path
) -> None:
    server, config = cluster
    script = tmp_path / "train.py"
    source = SCRIPTS["port"].source if ranks == "1" else SCRIPTS["port"].text
    script.write_text(f"import socket\n{source}", encoding="utf-8")
    env = {"PYTHONPATH": str(ROOT), "TRAINER_OUT": str(tmp_path / "run")}
    started = start("-m", "trainer.launch", "--nproc-per-node", ranks, str(script), **env)
    started.process.wait(60)
    log_of(server, started.read(started.stderr), started.process.returncode)
    found = ask(run, config)
    assert found["cause"].endswith("(port)"), found
    assert found["first"].startswith(f"rank {int(ranks) - 1} (node 1, pod {POD})")
    assert "Address already in use" in found["evidence"]
    assert "train.py, line" in found["at"]
