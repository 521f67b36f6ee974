"""What controller and template together give to pod i of n is what `trainer.launch` takes for node i."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rendering import (
    CLUSTER,
    LAUNCHERS,
    environment_in_pod,
    environment_in_script,
    job,
    pods,
    render,
)
from trainer import contract


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_the_contract_of_a_job_resolves_to_its_ranks(nodes: int) -> None:
    """What template and kubelet give to pod i is what `trainer.launch` takes for node i."""
    rendered = render(job(nodes=nodes, procsPerNode=2, trainer={"globalBatch": 40}), "job")
    service, created = rendered.objects
    template = created["spec"]["template"]
    for index in range(created["spec"]["completions"]):
        seen = contract.resolve(given_by_kubelet(template, index), devices=lambda: 0)
        assert (seen.min_nodes, seen.max_nodes, seen.ranks_per_node) == (nodes, nodes, 2)
        assert (seen.node_rank, seen.elastic, seen.local_address) == (index, False, "10.0.0.9")
        # The name of pod 0 in the Service's domain, which is the pod's subdomain.
        domain = service["metadata"]["name"]
        assert template["spec"]["subdomain"] == domain
        assert seen.endpoint == f"{created['metadata']['name']}-0.{domain}:29500"
        assert seen.shutdown_timeout == 110


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_the_contract_of_a_pytorchjob_resolves_to_its_ranks(nodes: int) -> None:
    """The training operator sets these variables from the replicas and the master's port."""
    made = render(
        job(nodes=nodes, procsPerNode=2, trainer={"globalBatch": 40}), "pytorchjob"
    ).objects[0]
    replicas = made["spec"]["pytorchReplicaSpecs"]
    assert sum(one["replicas"] for one in replicas.values()) == nodes
    assert ("Worker" in replicas) == (nodes > 1)
    for index in range(nodes):
        template = replicas["Worker" if index else "Master"]["template"]
        container = template["spec"]["containers"][0]
        assert container["name"] == "pytorch"
        port = next(
            p["containerPort"] for p in container["ports"] if p["name"] == "pytorchjob-port"
        )
        own = given_by_kubelet(template, index)
        by_controller = {
            "PET_NNODES": str(nodes),
            "PET_NPROC_PER_NODE": made["spec"]["nprocPerNode"],
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": f"{made['metadata']['name']}-master-0",
            "PET_MASTER_PORT": str(port),
        }
        assert not own.keys() & by_controller.keys()
        seen = contract.resolve(own | by_controller, devices=lambda: 0)
        assert (seen.max_nodes, seen.ranks_per_node, seen.node_rank) == (nodes, 2, index)
        assert seen.endpoint == "a-job-master-0:29500"
        assert own["MUSTER_RETRY_EXIT_OFFSET"] == "128"


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("launcher", ["jobset", "trainjob"])
def test_the_contract_of_a_jobset_resolves_to_its_ranks(launcher: str, nodes: int) -> None:
    """Pod i of Job j of a JobSet is <set>-<replicated job>-<j>-<i>, in the domain of its subdomain."""
    objects = render(
        job(nodes=nodes, procsPerNode=2, trainer={"globalBatch": 40}), launcher
    ).objects
    made = objects[-1]
    held = made["spec"] if launcher == "jobset" else objects[0]["spec"]["template"]["spec"]
    assert held["network"]["enableDNSHostnames"] is True
    assert held["network"]["publishNotReadyAddresses"] is True
    (replicated,) = held["replicatedJobs"]
    inner = replicated["template"]["spec"]
    assert (replicated["replicas"], inner["completions"], inner["parallelism"]) == (1, nodes, nodes)
    domain = held["network"]["subdomain"]
    master = f"{made['metadata']['name']}-{replicated['name']}-0-0.{domain}"
    for index in range(nodes):
        own = given_by_kubelet(inner["template"], index)
        by_controller = by_the_trainer(objects, index) if launcher == "trainjob" else {}
        assert not own.keys() & by_controller.keys()
        seen = contract.resolve(own | by_controller, devices=lambda: 0)
        assert (seen.min_nodes, seen.max_nodes, seen.ranks_per_node) == (nodes, nodes, 2)
        assert (seen.node_rank, seen.elastic, seen.local_address) == (index, False, "10.0.0.9")
        assert seen.endpoint == f"{master}:29500"
        assert seen.shutdown_timeout == 110


def by_the_trainer(objects: tuple[dict[str, Any], ...], index: int) -> dict[str, str]:
    """Return what Kubeflow Trainer sets, if it finds what it looks for."""
    runtime, made = objects
    assert made["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    assert runtime["metadata"].get("namespace") == made["metadata"].get("namespace")
    assert "torch" in runtime["spec"]["mlPolicy"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    step = replicated["template"]["metadata"]["labels"]
    assert step["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    container = replicated["template"]["spec"]["template"]["spec"]["containers"][0]
    assert (replicated["name"], container["name"]) == ("node", "node")
    name = made["metadata"]["name"]
    return {
        "PET_NNODES": str(made["spec"]["trainer"]["numNodes"]),
        "PET_NPROC_PER_NODE": str(made["spec"]["trainer"]["numProcPerNode"]),
        "PET_NODE_RANK": str(index),
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_the_contract_of_a_volcano_job_resolves_to_its_ranks(nodes: int) -> None:
    """Pod i is <job>-<task>-<i>; the svc plugin puts it in a domain that is called like the job."""
    made = render(job(nodes=nodes, procsPerNode=2, trainer={"globalBatch": 40}), "volcano").objects[
        0
    ]
    (task,) = made["spec"]["tasks"]
    assert made["spec"]["plugins"] == {"svc": ["--publish-not-ready-addresses=true"]}
    assert (made["spec"]["minAvailable"], task["replicas"], task["minAvailable"]) == (nodes,) * 3
    name = made["metadata"]["name"]
    for index in range(nodes):
        seen = contract.resolve(given_by_kubelet(task["template"], index), devices=lambda: 0)
        assert (seen.min_nodes, seen.max_nodes, seen.ranks_per_node) == (nodes, nodes, 2)
        assert (seen.node_rank, seen.elastic, seen.local_address) == (index, False, "10.0.0.9")
        assert seen.endpoint == f"{name}-{task['name']}-0.{name}:29500"


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_the_contract_of_compose_resolves_to_its_ranks(nodes: int) -> None:
    """A container of compose is called like its service."""
    text = render(job(nodes=nodes, procsPerNode=2, trainer={"globalBatch": 40}), "compose").text
    services = yaml.safe_load(text)["services"]
    assert len(services) == nodes
    for index, (name, service) in enumerate(services.items()):
        seen = contract.resolve(service["environment"], devices=lambda: 0)
        assert (seen.min_nodes, seen.max_nodes, seen.ranks_per_node) == (nodes, nodes, 2)
        assert (name, seen.node_rank, seen.elastic) == (f"node-{index}", index, False)
        assert seen.endpoint == "node-0:29500"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_preflight_looks_for_the_accelerators_that_are_asked_for(
    launcher: str, tmp_path: Path
) -> None:
    """A node of a cluster has its own; a container on this machine has those of all nodes."""
    values = job(nodes=2, resources={"gpu": 4}, trainer={"globalBatch": 16})
    expected = {"docker": "8", "local": None}.get(launcher, "4")
    for changes, wanted in (({}, expected), ({"devices": 1}, "1"), ({"devices": 0}, "0")):
        asked = values | {"trainer": {**values["trainer"], **changes}}
        assert environment(asked, launcher, tmp_path).get("TRAINER_DEVICES") == wanted
    assert "TRAINER_DEVICES" not in environment(job(), launcher, tmp_path)


def environment(values: dict[str, Any], launcher: str, folder: Path) -> dict[str, str]:
    if launcher in CLUSTER:
        return environment_in_pod(pods(render(values, launcher))[0])
    return environment_in_script(values, launcher, folder)


@pytest.mark.parametrize("launcher", ["local", "docker"])
def test_the_contract_of_a_machine_is_one_node(launcher: str, tmp_path: Path) -> None:
    values = job(nodes=5, procsPerNode=2, trainer={"globalBatch": 40})
    seen = contract.resolve(environment_in_script(values, launcher, tmp_path), devices=lambda: 0)
    assert (seen.max_nodes, seen.ranks_per_node, seen.node_rank) == (1, 10, 0)


def given_by_kubelet(template: dict[str, Any], index: int) -> dict[str, str]:
    fields = {
        "status.podIP": "10.0.0.9",
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
        "metadata.annotations['volcano.sh/task-index']": str(index),
    }
    return {
        entry["name"]: entry["value"]
        if "value" in entry
        else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in template["spec"]["containers"][0]["env"]
    }
