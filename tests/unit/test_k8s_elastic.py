"""`nodes: {min, max}`: the contract that agents rejoin by, and what becomes of a pod that is lost."""

from typing import Any

import pytest

from tests.rendering import environment_in_script, job, only, planned, pods, render
from tests.unit.test_k8s_faults import CODES, pod_failure
from trainer import contract
from trainer.exits import Exit, Fault

ELASTIC = ["job", "jobset", "pytorchjob", "volcano"]
MASTERS = {
    "job": "a-job-0.a-job",
    "jobset": "a-job-node-0-0.a-job",
    "pytorchjob": "a-job-worker-0",
    "volcano": "a-job-node-0.a-job",
}


def elastic(**changes: Any) -> dict[str, Any]:
    nodes = {"nodes": {"min": 2, "max": 4}, "procsPerNode": 2, "trainer": {"globalBatch": 48}}
    return job(**nodes, **changes)


def given(launcher: str, index: int) -> dict[str, str]:
    """Return what controller, template and kubelet give to pod `index`."""
    rendered = render(elastic(), launcher)
    template = pods(rendered)[0]
    fields = {
        "status.podIP": "10.0.0.9",
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
        "metadata.annotations['volcano.sh/task-index']": str(index),
        "metadata.labels['batch.kubernetes.io/controller-uid']": "uid-1",
        "metadata.annotations['scheduling.k8s.io/group-name']": "a-job-uid-1",
        "metadata.labels['training.kubeflow.org/replica-index']": str(index),
        "metadata.labels['training.kubeflow.org/job-name']": "a-job",
    }
    found = {
        one["name"]: one["value"]
        if "value" in one
        else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in template["spec"]["containers"][0]["env"]
    }
    if launcher == "pytorchjob":
        found |= by_the_operator(rendered.objects[-1], found)
    return found


def by_the_operator(made: dict[str, Any], own: dict[str, str]) -> dict[str, str]:
    """Return what the training operator sets for an elastic job without a master."""
    policy, spec = made["spec"]["elasticPolicy"], made["spec"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    port = next(one["containerPort"] for one in worker["ports"] if one["name"] == "pytorchjob-port")
    found = {
        "PET_NPROC_PER_NODE": spec["nprocPerNode"],
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_RDZV_ENDPOINT": f"{made['metadata']['name']}-worker-0:{port}",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
    }
    assert not found.keys() & own.keys()
    return found


@pytest.mark.parametrize("launcher", ELASTIC)
def test_every_pod_resolves_to_the_same_rendezvous(launcher: str) -> None:
    for index in range(4):
        seen = contract.resolve(given(launcher, index), devices=lambda: 0)
        assert (seen.min_nodes, seen.max_nodes, seen.ranks_per_node) == (2, 4, 2)
        assert (seen.elastic, seen.node_rank) == (True, index)
        assert seen.endpoint == f"{MASTERS[launcher]}:29500"
        assert (seen.max_restarts, seen.local_address) == (3, "10.0.0.9")


@pytest.mark.parametrize("launcher", ELASTIC)
def test_the_rendezvous_is_called_by_the_jobs_identity(launcher: str) -> None:
    """mlbatch's is the constant 101, so that two submissions would meet."""
    seen = contract.resolve(given(launcher, 0), devices=lambda: 0).rendezvous_id
    # The operator gives a pod no identity of its job; there the endpoint's name tells jobs apart.
    assert seen == "a-job" if launcher == "pytorchjob" else seen.endswith("uid-1")


def test_compose_gives_the_same_contract(tmp_path: Any) -> None:
    seen = contract.resolve(
        environment_in_script(elastic(), "compose", tmp_path), devices=lambda: 0
    )
    assert (seen.min_nodes, seen.max_nodes, seen.elastic) == (2, 4, True)
    assert seen.endpoint == "node-0:29500"


@pytest.mark.parametrize("launcher", ["local", "docker"])
def test_on_one_machine_it_has_its_largest_size(launcher: str, tmp_path: Any) -> None:
    seen = environment_in_script(elastic(), launcher, tmp_path)
    assert (seen["PET_NNODES"], seen["PET_NPROC_PER_NODE"]) == ("1", "8")


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
    # A pod that never found a machine does not keep the job from being done.
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
    assert planned(elastic() | {"trainer": {"globalBatch": 32}}).elastic  # shares may be uneven
    with pytest.raises(
        Fault, match=r"multiplies to 4, but the world size is 6.*with 3 of nodes' 2"
    ):
        planned(elastic() | {"trainer": {"mesh": "dp_replicate=4"}})
    with pytest.raises(Fault) as refusal:
        planned(job(nodes={"min": 3, "max": 2}))
    assert refusal.value.code == Exit.CONFIG
    assert str(refusal.value) == "nodes: max=2 is less than min=3"
