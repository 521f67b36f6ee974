"""`nodes: {min, max}`: how agents rejoin, and what happens to a lost pod."""

from typing import Any

import pytest

from k8s.cluster.state import pod
from k8s.launchers import job_kinds
from tests.rendering import job, only, planned, pods, render
from tests.unit.k8s.launchers.test_faults import CODES, pod_failure
from trainer.config.exits import Exit, Fault


def elastic(**changes: Any) -> dict[str, Any]:
    nodes = {"nodes": {"min": 2, "max": 4}, "procsPerNode": 2, "trainer": {"globalBatch": 48}}
    return job(**nodes, **changes)


@pytest.mark.parametrize("launcher", ["job", "jobset"])
@pytest.mark.parametrize("code", [*CODES, None])
def test_a_lost_pod_is_replaced_alone(launcher: str, code: int | None) -> None:
    made = render(elastic(), launcher).objects[-1]["spec"]
    inner = made["replicatedJobs"][0]["template"]["spec"] if launcher == "jobset" else made
    found = pod_failure(inner, code)
    expected = {"fail": "FailJob", "free": "Ignore", "peer": "Ignore", "retry": None}
    wanted = expected["free" if code is None else CODES[code]]
    assert (found[1] if found else None) == wanted
    assert (inner["parallelism"], inner["completions"], inner["backoffLimit"]) == (4, 4, 3)
    # A pod that was never scheduled does not prevent the job's success.
    assert inner["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    if launcher == "jobset":
        assert made["failurePolicy"]["maxRestarts"] == 0
        assert [rule["action"] for rule in made["failurePolicy"]["rules"]] == ["FailJobSet"]


def test_a_pytorchjob_has_workers_alone() -> None:
    """The operator leaves the master out of the number of nodes (kubeflow/trainer 2277)."""
    spec = only(render(elastic(scheduling={"gang": True}), "pytorchjob"), "PyTorchJob")["spec"]
    assert set(spec["pytorchReplicaSpecs"]) == {"Worker"}
    assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == 4
    assert spec["runPolicy"]["schedulingPolicy"] == {"minAvailable": 2}
    assert "elasticPolicy" not in only(render(job(nodes=2), "pytorchjob"), "PyTorchJob")["spec"]


def test_the_workers_of_an_elastic_pytorchjob_are_nodes_from_0_on() -> None:
    made = planned(elastic(name="a"), "pytorchjob")
    assert (made.rendezvous.master, made.rendezvous.longest_host) == ("a-worker-0", "a-worker-0")
    wide = {"nodes": {"min": 1, "max": 11}, "trainer": {"globalBatch": 48}}
    assert planned(job(name="a", **wide), "pytorchjob").rendezvous.longest_host == "a-worker-10"
    (template,) = pods(render(elastic(), "pytorchjob"))
    labels = {f"{OPERATOR}/replica-type": "worker", f"{OPERATOR}/replica-index": "2"}
    found = {"metadata": {"name": "a-worker-2", "labels": labels}, "spec": template["spec"]}
    kind = next(one for one in job_kinds() if one.launcher == "pytorchjob")
    assert pod(found, kind).node == 2


OPERATOR = "training.kubeflow.org"


def test_a_volcano_job_waits_for_enough_and_restarts_one_pod() -> None:
    spec = only(render(elastic(), "volcano"), "Job")["spec"]
    (task,) = spec["tasks"]
    assert (spec["minAvailable"], task["minAvailable"], task["replicas"]) == (2, 2, 4)
    assert spec["minSuccess"] == 2
    assert spec["policies"][-1]["action"] == "RestartPod"
    fixed = only(render(job(nodes=2), "volcano"), "Job")["spec"]
    assert fixed["policies"][-1]["action"] == "RestartJob"


@pytest.mark.parametrize("launcher", ["job", "jobset"])
def test_a_gang_is_of_enough(launcher: str) -> None:
    group = only(render(elastic(scheduling={"gang": True}), launcher), "PodGroup")
    assert group["spec"] == {"minMember": 2}


def test_a_trainjob_refuses_and_says_why() -> None:
    with pytest.raises(Fault, match=r"nodes.min=2: not on launcher trainjob; .*2903.*use launcher"):
        render(elastic(), "trainjob")


def test_every_number_of_nodes_must_fit() -> None:
    assert planned(
        elastic() | {"trainer": {"globalBatch": 32}}
    ).size.elastic  # shares may be uneven
    split = {"task": "charlm-gpt", "mode": "tp", "globalBatch": 32}  # over 4, 6 or 8 ranks
    with pytest.raises(
        Fault, match=r"do not divide over tp=6; .*with 3 nodes; nodes may be 2 to 4"
    ):
        planned(elastic() | {"trainer": split})
    with pytest.raises(Fault, match=r"mesh='dp_replicate=4': has a fixed number of ranks"):
        planned(elastic() | {"trainer": {"mesh": "dp_replicate=4"}})
    with pytest.raises(Fault) as refusal:
        planned(job(nodes={"min": 3, "max": 2}))
    assert refusal.value.code == Exit.CONFIG
    assert str(refusal.value) == "nodes: max=2 is less than min=3"
