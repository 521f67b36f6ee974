"""The stand-in's controller of PyTorchJobs, after the training operator 1.9.

Master and Workers with a Service each, restartPolicy ExitCode (128 and more is tried again, without an
end: the operator counts only restarts within a pod against backoffLimit), cleanPodPolicy, suspend.
Left out: the init container that waits for the master, elastic policies' HPA, deadlines, and gangs.
"""

import copy

from tests.standin.store import (
    Object,
    Refusal,
    Store,
    is_true,
    now,
    reference,
    with_condition,
)

_API = "kubeflow.org/v1"
_KEY = "training.kubeflow.org"


def sync(store: Store) -> None:
    """Bring every PyTorchJob one step further."""
    for one in store.all(_API, "PyTorchJob"):
        pods = {pod["metadata"]["name"]: pod for pod in store.owned(one, "v1", "Pod")}
        status = copy.deepcopy(one.get("status", {}))
        policy = one["spec"].get("runPolicy", {})
        suspended = policy.get("suspend", False)
        if is_true(one, "Succeeded") or is_true(one, "Failed") or suspended:
            if suspended or policy.get("cleanPodPolicy", "None") != "None":
                _clean(store, one, pods, all_of_them=suspended or policy["cleanPodPolicy"] == "All")
            for told in status.get("replicaStatuses", {}).values():
                told["active"] = 0
            if suspended and not (is_true(one, "Succeeded") or is_true(one, "Failed")):
                name = one["metadata"]["name"]
                _say(status, "Suspended", f"PyTorchJob {name} is suspended.")
        else:
            _run(store, one, status, pods)
        store.change(one, status=status)


def _clean(store: Store, one: Object, pods: dict[str, Object], *, all_of_them: bool) -> None:
    for name, pod in pods.items():
        if all_of_them or pod["status"]["phase"] in ("Running", "Pending"):
            if "deletionTimestamp" not in pod["metadata"]:
                store.delete(pod)
            service = store.get("v1", "Service", one["metadata"]["namespace"], name)
            if service:
                store.delete(service)


def _run(store: Store, one: Object, status: Object, pods: dict[str, Object]) -> None:
    name, replicas = one["metadata"]["name"], one["spec"]["pytorchReplicaSpecs"]
    status.setdefault("startTime", now())
    if is_true({"status": status}, "Suspended"):
        _say(status, "Suspended", f"PyTorchJob {name} is resumed.", value="False")
    if not status.get("conditions"):
        _say(status, "Created", f"PyTorchJob {name} is created.")
    for pod in pods.values():  # those that there are too many of
        labels = {k.removeprefix(f"{_KEY}/"): v for k, v in pod["metadata"]["labels"].items()}
        (wanted,) = (
            s["replicas"] for k, s in replicas.items() if k.lower() == labels["replica-type"]
        )
        if int(labels["replica-index"]) >= wanted and "deletionTimestamp" not in pod["metadata"]:
            store.delete(pod)
    told: dict[str, dict[str, int]] = {}
    for kind, spec in replicas.items():
        count = told[kind] = {"active": 0, "succeeded": 0, "failed": 0}
        for index in range(spec["replicas"]):
            if (key := f"{name}-{kind.lower()}-{index}") not in pods:
                _make(store, one, kind, index)
                continue
            pod = pods[key]
            phase, dying = pod["status"]["phase"], "deletionTimestamp" in pod["metadata"]
            if phase == "Failed" and not dying:
                _after_failure(store, one, status, kind, pod)
            counted = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}.get(phase)
            if counted and not (counted == "failed" and dying):
                count[counted] += 1
    status["replicaStatuses"] = told
    _fold(status, name, replicas, told)


def _make(store: Store, one: Object, kind: str, index: int) -> None:
    """Make a replica's pod, and its Service if there is none."""
    service = _service(one, kind, index)
    if not store.get("v1", "Service", one["metadata"]["namespace"], service["metadata"]["name"]):
        store.create(service)
    try:
        store.create(_pod(one, kind, index))
    except Refusal as refusal:
        store.event(one, "FailedCreatePod", refusal.message, kind="Warning")


def _after_failure(store: Store, one: Object, status: Object, kind: str, pod: Object) -> None:
    name = one["metadata"]["name"]
    (container,) = pod["status"]["containerStatuses"]
    code = container["state"]["terminated"]["exitCode"]
    policy = one["spec"]["pytorchReplicaSpecs"][kind].get("restartPolicy", "OnFailure")
    if policy == "ExitCode" and code >= 128:
        words = f"job {name} is restarting because {kind} replica(s) failed."
        store.delete(pod)
        store.event(one, "PyTorchJobRestarting", words, kind="Warning")
        _say(status, "Restarting", words)
    elif policy == "ExitCode":
        words = f'job "{name}" is failing because "{kind}" replica(s) failed.'
        store.event(one, "PyTorchJobFailed", words, kind="Warning")
        _say(status, "Failed", words)


def _fold(status: Object, name: str, replicas: Object, told: dict[str, dict[str, int]]) -> None:
    """Say how the job is, by its Master, or by its Workers where there is none."""
    main = "Master" if "Master" in replicas else "Worker"
    if told[main]["active"]:
        _say(status, "Running", f"PyTorchJob {name} is running.")
    if told[main]["succeeded"] == replicas[main]["replicas"]:
        _say(status, "Succeeded", f"PyTorchJob {name} is successfully completed.")
        status.setdefault("completionTime", now())
        return
    for kind, count in told.items():
        if count["failed"] and replicas[kind]["replicas"] > count["succeeded"] + count["active"]:
            words = f"is restarting because {count['failed']} {kind} replica(s) failed."
            _say(status, "Restarting", f"PyTorchJob {name} {words}")


def _say(status: Object, kind: str, words: str, *, value: str = "True") -> None:
    """Set a condition; Running and Restarting exclude each other, and an end ends Running."""
    held = status.get("conditions", [])
    if any(one["type"] == "Failed" and one["status"] == "True" for one in held):
        return
    other = {"Running": "Restarting", "Restarting": "Running"}.get(kind)
    held = [one for one in held if one["type"] != other]
    if kind in ("Succeeded", "Failed", "Suspended"):
        reason = f"PyTorchJob{kind}"
        held = with_condition(held, "Running", reason, words, status="False")
    status["conditions"] = with_condition(held, kind, f"PyTorchJob{kind}", words, status=value)


def _labels(one: Object, kind: str, index: int) -> dict[str, str]:
    return {
        f"{_KEY}/operator-name": "pytorchjob-controller",
        f"{_KEY}/job-name": one["metadata"]["name"],
        f"{_KEY}/replica-type": kind.lower(),
        f"{_KEY}/replica-index": str(index),
    }


def _metadata(one: Object, kind: str, index: int) -> Object:
    return {
        "name": f"{one['metadata']['name']}-{kind.lower()}-{index}",
        "namespace": one["metadata"]["namespace"],
        "ownerReferences": [reference(one)],
    }


def _service(one: Object, kind: str, index: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(one, kind, index),
        "spec": {"clusterIP": "None", "selector": _labels(one, kind, index)},
    }


def _pod(one: Object, kind: str, index: int) -> Object:
    template = copy.deepcopy(one["spec"]["pytorchReplicaSpecs"][kind]["template"])
    labels = template.get("metadata", {}).get("labels", {}) | _labels(one, kind, index)
    if kind == "Master":
        labels[f"{_KEY}/job-role"] = "master"
    for container in template["spec"]["containers"]:
        if container["name"] == "pytorch":
            container["env"] = [*container.get("env", []), *_variables(one, kind, index, container)]
    annotations = template.get("metadata", {}).get("annotations", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(one, kind, index) | {"labels": labels, "annotations": annotations},
        "spec": template["spec"] | {"restartPolicy": "Never"},
        "status": {"phase": "Pending"},
    }


def _variables(one: Object, kind: str, index: int, container: Object) -> list[dict[str, str]]:
    """Return what setPodEnv adds, for a job with or without an elastic policy."""
    spec, name = one["spec"], one["metadata"]["name"]
    replicas = spec["pytorchReplicaSpecs"]
    port = next(p["containerPort"] for p in container["ports"] if p["name"] == "pytorchjob-port")
    total = sum(part["replicas"] for part in replicas.values())
    rank = index if kind == "Master" or "Master" not in replicas else index + 1
    values = {"PET_NPROC_PER_NODE": spec["nprocPerNode"], "PYTHONUNBUFFERED": "1"}
    if policy := spec.get("elasticPolicy"):
        values |= {
            "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
            "PET_RDZV_BACKEND": policy["rdzvBackend"],
            "PET_RDZV_ENDPOINT": f"{name}-worker-0:{port}",
            "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
        }
    else:
        # The operator's own numbers of nodes, which look like those of ranks.
        values |= {
            "MASTER_ADDR": "localhost" if kind == "Master" else f"{name}-master-0",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(total * int(spec["nprocPerNode"])),
            "RANK": str(rank),
            "PET_NNODES": str(total),
            "PET_NODE_RANK": str(rank),
            "PET_MASTER_ADDR": f"{name}-master-0",
            "PET_MASTER_PORT": str(port),
        }
    return [{"name": key, "value": value} for key, value in values.items()]
