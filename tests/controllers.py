"""What each launcher's controller gives to pod i beside the template, by the controllers' own rules.

- Job: pkg/controller/job of Kubernetes; pod i is <job>-<i> in the domain of its subdomain.
- JobSet: pkg/controllers of kubernetes-sigs/jobset; pod i is <set>-<replicated job>-<job>-<i>.
- PyTorchJob: envvar.go, master.go, elastic.go in pkg/controller.v1/pytorch of the training operator 1.9.
- TrainJob: pkg/runtime/framework/plugins/torch of kubeflow/trainer 2.3, on top of the JobSet's.
- Volcano: createJobPod in pkg/controllers/job/job_controller_util.go, and plugins/svc beside it.
- compose: a service's name is its container's.
"""

from collections.abc import Callable
from typing import Any

import yaml

from tests.rendering import pods, render

Objects = tuple[dict[str, Any], ...]
UID = "0d1f-uid"
ADDRESS = "10.0.0.9"


def given(launcher: str, values: dict[str, Any], index: int) -> dict[str, str]:
    """Return the environment of the container on node `index`."""
    rendered = render(values, launcher)
    if launcher == "compose":
        service: dict[str, str] = services(values)[f"node-{index}"]["environment"]
        return service
    templates = pods(rendered)
    template = templates[min(index, len(templates) - 1)]
    annotations, labels, added = _GIVEN[launcher](rendered.objects, index)
    fields = {"status.podIP": ADDRESS}
    fields |= {f"metadata.annotations['{key}']": text for key, text in annotations.items()}
    fields |= {f"metadata.labels['{key}']": text for key, text in labels.items()}
    own = {
        one["name"]: one["value"]
        if "value" in one
        else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in template["spec"]["containers"][0]["env"]
    }
    # A controller's variable and the template's of one name: which wins differs by controller.
    assert not own.keys() & added.keys()
    return own | added


def host(launcher: str, values: dict[str, Any], index: int) -> str:
    """Return the name by which the other nodes find node `index`."""
    if launcher == "compose":
        return list(services(values))[index]
    return _HOST[launcher](render(values, launcher).objects, index)


def services(values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(render(values, "compose").text)["services"]
    return found


_Given = tuple[dict[str, str], dict[str, str], dict[str, str]]


def _by_the_job(made: dict[str, Any], index: int) -> _Given:
    spec = made["spec"]
    assert spec["completionMode"] == "Indexed"
    assert index < spec["completions"] == spec["parallelism"]
    labels = {"batch.kubernetes.io/controller-uid": UID}
    return {"batch.kubernetes.io/job-completion-index": str(index)}, labels, {}


def _job(objects: Objects, index: int) -> _Given:
    return _by_the_job(objects[-1], index)


def _host_of_a_job(objects: Objects, index: int) -> str:
    service, made = objects
    template = made["spec"]["template"]
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": made["metadata"]["name"]}
    return f"{made['metadata']['name']}-{index}.{service['metadata']['name']}"


def _jobset_spec(objects: Objects) -> dict[str, Any]:
    made = objects[-1]
    held = objects[0]["spec"]["template"]["spec"] if made["kind"] == "TrainJob" else made["spec"]
    assert isinstance(held, dict)
    return held


def _jobset(objects: Objects, index: int) -> _Given:
    (replicated,) = _jobset_spec(objects)["replicatedJobs"]
    assert replicated["replicas"] == 1
    return _by_the_job(replicated["template"], index)


def _host_of_a_jobset(objects: Objects, index: int) -> str:
    held = _jobset_spec(objects)
    assert held["network"]["enableDNSHostnames"] is True
    assert held["network"]["publishNotReadyAddresses"] is True
    (replicated,) = held["replicatedJobs"]
    name = f"{objects[-1]['metadata']['name']}-{replicated['name']}-0-{index}"
    return f"{name}.{held['network']['subdomain']}"


def _trainjob(objects: Objects, index: int) -> _Given:
    runtime, made = objects
    reference = made["spec"]["runtimeRef"]
    assert reference == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    }
    assert runtime["metadata"].get("namespace") == made["metadata"].get("namespace")
    assert "torch" in runtime["spec"]["mlPolicy"]
    (replicated,) = _jobset_spec(objects)["replicatedJobs"]
    step = replicated["template"]["metadata"]["labels"]
    assert step["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    container = replicated["template"]["spec"]["template"]["spec"]["containers"][0]
    assert (replicated["name"], container["name"]) == ("node", "node")
    annotations, labels, _ = _jobset(objects, index)
    added = {
        "PET_NNODES": str(made["spec"]["trainer"]["numNodes"]),
        "PET_NPROC_PER_NODE": str(made["spec"]["trainer"]["numProcPerNode"]),
        "PET_NODE_RANK": annotations["batch.kubernetes.io/job-completion-index"],
        "PET_MASTER_ADDR": "{0}-node-0-0.{0}".format(made["metadata"]["name"]),
        "PET_MASTER_PORT": "29500",
    }
    return annotations, labels, added


def _pytorchjob(objects: Objects, index: int) -> _Given:
    """The operator looks for a container `pytorch` with a port `pytorchjob-port`."""
    made = objects[-1]
    spec, name = made["spec"], made["metadata"]["name"]
    replicas = spec["pytorchReplicaSpecs"]
    kind = "Master" if "Master" in replicas and index == 0 else "Worker"
    own = index - 1 if "Master" in replicas and index else index
    assert own < replicas[kind]["replicas"]
    container = replicas[kind]["template"]["spec"]["containers"][0]
    assert container["name"] == "pytorch"
    port = next(p["containerPort"] for p in container["ports"] if p["name"] == "pytorchjob-port")
    labels = {
        "training.kubeflow.org/replica-index": str(own),
        "training.kubeflow.org/job-name": name,
    }
    if "elasticPolicy" not in spec:
        added = {
            "PET_NNODES": str(sum(one["replicas"] for one in replicas.values())),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": f"{name}-master-0",
            "PET_MASTER_PORT": str(port),
        }
    else:
        assert "Master" not in replicas
        policy = spec["elasticPolicy"]
        added = {
            "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
            "PET_RDZV_BACKEND": policy["rdzvBackend"],
            "PET_RDZV_ENDPOINT": f"{name}-worker-0:{port}",
            "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
        }
    return {}, labels, added | {"PET_NPROC_PER_NODE": spec["nprocPerNode"]}


def _host_of_a_pytorchjob(objects: Objects, index: int) -> str:
    """A Service for every replica, named like it."""
    name, replicas = objects[-1]["metadata"]["name"], objects[-1]["spec"]["pytorchReplicaSpecs"]
    if "Master" not in replicas:
        return f"{name}-worker-{index}"
    return f"{name}-worker-{index - 1}" if index else f"{name}-master-0"


def _volcano(objects: Objects, index: int) -> _Given:
    (task,) = objects[-1]["spec"]["tasks"]
    assert index < task["replicas"]
    annotations = {
        "volcano.sh/task-index": str(index),
        "scheduling.k8s.io/group-name": f"{objects[-1]['metadata']['name']}-{UID}",
    }
    return annotations, {}, {}


def _host_of_a_volcano_job(objects: Objects, index: int) -> str:
    """The svc plugin sets host name and subdomain, and makes the Service."""
    made = objects[-1]
    (task,) = made["spec"]["tasks"]
    assert "--publish-not-ready-addresses=true" in made["spec"]["plugins"]["svc"]
    name = made["metadata"]["name"]
    return f"{name}-{task['name']}-{index}.{name}"


_GIVEN: dict[str, Callable[[Objects, int], _Given]] = {
    "job": _job,
    "jobset": _jobset,
    "pytorchjob": _pytorchjob,
    "trainjob": _trainjob,
    "volcano": _volcano,
}
_HOST: dict[str, Callable[[Objects, int], str]] = {
    "job": _host_of_a_job,
    "jobset": _host_of_a_jobset,
    "pytorchjob": _host_of_a_pytorchjob,
    "trainjob": _host_of_a_jobset,
    "volcano": _host_of_a_volcano_job,
}
