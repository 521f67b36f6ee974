"""The stand-in's controller of TrainJobs, after Kubeflow Trainer 2.3 with its torch and JobSet plugins.

A TrainJob with a TrainingRuntime becomes a JobSet of its name; its state is the JobSet's. Left out:
ClusterTrainingRuntimes, all but numNodes and numProcPerNode of the trainer, initialisers, and deadlines.
"""

import copy
from typing import Any

from tests.standin.store import Object, Store, is_true, reference, with_condition

_API = "trainer.kubeflow.org/v1alpha1"
_JOBSET = "jobset.x-k8s.io/v1alpha2"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def sync(store: Store) -> None:
    """Bring every TrainJob one step further."""
    for one in store.all(_API, "TrainJob"):
        if is_true(one, "Complete") or is_true(one, "Failed"):
            continue
        namespace, name = one["metadata"]["namespace"], one["metadata"]["name"]
        held = store.get(_JOBSET, "JobSet", namespace, name)
        runtime = store.get(_API, "TrainingRuntime", namespace, one["spec"]["runtimeRef"]["name"])
        suspended = one["spec"].get("suspend", False)
        if held is None and runtime is None:
            continue
        if held is None:
            assert runtime
            store.create(_jobset(one, runtime, suspended=suspended))
            continue
        if held["spec"].get("suspend", False) != suspended:
            held = store.change(held, spec=held["spec"] | {"suspend": suspended})
        _tell(store, one, held, suspended=suspended)


def _tell(store: Store, one: Object, held: Object, *, suspended: bool) -> None:
    status = copy.deepcopy(one.get("status", {}))
    conditions = status.get("conditions", [])
    state, reason, words = "True", "Suspended", "TrainJob is suspended"
    if not suspended:
        state, reason, words = "False", "Resumed", "TrainJob is resumed"
    conditions = with_condition(conditions, "Suspended", reason, words, status=state)
    for theirs, ours in (("Completed", "Complete"), ("Failed", "Failed")):
        if found := is_true(held, theirs):
            conditions = with_condition(conditions, ours, found["reason"], found["message"])
    parts = held.get("status", {}).get("replicatedJobsStatus", [])
    store.change(one, status=status | {"conditions": conditions, "jobsStatus": parts})


def _jobset(one: Object, runtime: Object, *, suspended: bool) -> Object:
    template = copy.deepcopy(runtime["spec"]["template"])
    spec, name = template["spec"], one["metadata"]["name"]
    nodes, procs = (one["spec"]["trainer"][key] for key in ("numNodes", "numProcPerNode"))
    for part in spec["replicatedJobs"]:
        if part["template"].get("metadata", {}).get("labels", {}).get(_STEP) != "trainer":
            continue
        part["template"]["spec"] |= {"completions": nodes, "parallelism": nodes}
        for container in part["template"]["spec"]["template"]["spec"]["containers"]:
            if container["name"] == "node":
                added = _variables(name, part["name"], nodes, procs)
                names = {variable["name"] for variable in added}
                own = [one for one in container.get("env", []) if one["name"] not in names]
                container["env"] = [*own, *added]
    return {
        "apiVersion": _JOBSET,
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": one["metadata"]["namespace"],
            "labels": template.get("metadata", {}).get("labels", {}),
            "ownerReferences": [reference(one)],
        },
        "spec": spec | {"suspend": suspended},
    }


def _variables(name: str, part: str, nodes: int, procs: int) -> list[dict[str, Any]]:
    """Return what the torch plugin sets; the addresses are those of the first pod."""
    values = {
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(procs),
        "PET_MASTER_ADDR": f"{name}-{part}-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    rank = {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    return [*({"name": key, "value": value} for key, value in values.items()), rank]
