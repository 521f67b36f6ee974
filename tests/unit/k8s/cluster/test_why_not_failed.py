"""`why NAME` and `logs NAME` of a job that is suspended, held back, has lost a machine, or its pods."""

from typing import Any

import pytest

from tests.cluster_objects import FAILED, JOBSET, RUNNING, Cluster, Run, jobset, pod

VOLCANO = ("batch.volcano.sh/v1alpha1", "Job")


@pytest.mark.parametrize(
    ("kind", "spec", "status"),
    [
        (JOBSET, {"suspend": True}, {}),
        (("kubeflow.org/v1", "PyTorchJob"), {"runPolicy": {"suspend": True}}, {}),
        (VOLCANO, {}, {"state": {"phase": "Aborted"}}),
    ],
)
def test_a_suspended_job_says_how_to_resume_it(
    kind: tuple[str, str],
    spec: dict[str, Any],
    status: dict[str, Any],
    run: Run,
    cluster: Cluster,
) -> None:
    server, config = cluster
    server.put(*kind, jobset(spec, **status))
    out = run(config, "why", "digits")[1]
    assert "suspended (cancelled)" in out
    assert "do        python -m k8s resume digits" in out


def test_a_pod_that_a_scheduling_gate_holds_back(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    server.put(*JOBSET, jobset(**RUNNING))
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }
    status: dict[str, Any] = {"phase": "Pending", "conditions": [condition]}
    server.put("v1", "Pod", pod("digits-node-0-1", 1, **status))
    assert "(gate)" in run(config, "why", "digits")[1]


@pytest.mark.parametrize("ready", ["True", "False"])
def test_a_running_pod_whose_machine_does_not_answer(
    ready: str, run: Run, cluster: Cluster
) -> None:
    """Its phase stays Running. The event stays for an hour, also if the machine comes back."""
    server, config = cluster
    server.put(*JOBSET, jobset(**RUNNING))
    status: dict[str, Any] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": ready}],
    }
    server.put("v1", "Pod", pod("digits-node-0-1", 1, **status))
    event = {
        "metadata": {"name": "digits.1"},
        "type": "Warning",
        "reason": "NodeNotReady",
        "message": "Node is not ready",
        "involvedObject": {"name": "digits-node-0-1", "kind": "Pod"},
    }
    server.put("v1", "Event", event)
    assert ("(node lost)" in run(config, "why", "digits")[1]) == (ready == "False")


def test_a_failed_job_whose_pods_are_gone(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    server.put(*JOBSET, jobset(**FAILED))
    out = run(config, "why", "digits")[1]
    assert out.splitlines()[-1].startswith("unread    its logs: its pods are gone")
    code, out, err = run(config, "logs", "digits")
    assert (code, out) == (65, "")
    assert "its pods are gone, with their logs" in err
    server.put(*JOBSET, jobset({"suspend": True}))
    assert run(config, "logs", "digits")[0] == 0
