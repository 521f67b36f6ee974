"""Controls PyTorchJobs, modelled on the training operator 1.9.

Master and Workers with a Service each, restartPolicy ExitCode (from 128 on, retried without a limit: the
operator counts only restarts within a pod against backoffLimit), cleanPodPolicy, suspend,
scaling. Left out: the init container that waits for the master, deadlines, gangs, and the HPA of
elastic policies.
"""

import copy

from tests.standin.objects import (
    Object,
    child,
    deleted,
    exit_code,
    finished,
    headless,
    is_true,
    now,
    set_condition,
)
from tests.standin.server import Server

_KEY = "training.kubeflow.org"


def sync(server: Server) -> None:
    """Bring every PyTorchJob one step further."""
    for one in server.all("kubeflow.org/v1", "PyTorchJob"):
        pods = {pod["metadata"]["name"]: pod for pod in server.owned(one, "v1", "Pod")}
        status = copy.deepcopy(one.get("status", {}))
        policy = one["spec"].get("runPolicy", {})
        ended = is_true(one, "Succeeded") or is_true(one, "Failed")
        suspended = policy.get("suspend")
        if ended or suspended:
            clean = "All" if suspended else policy.get("cleanPodPolicy", "None")
            for name, pod in pods.items():
                if clean == "All" or (clean == "Running" and not finished(pod)):
                    _delete(server, pod)
                    service = server.get("v1", "Service", one["metadata"]["namespace"], name)
                    if service:
                        server.delete(service)
            for counts in status.get("replicaStatuses", {}).values():
                counts["active"] = 0
            if not ended:
                _set(status, one, "Suspended", "is suspended.")
        else:
            _run(server, one, status, pods)
        server.change(one, status=status)


def _run(server: Server, one: Object, status: Object, pods: dict[str, Object]) -> None:
    name, replicas = one["metadata"]["name"], one["spec"]["pytorchReplicaSpecs"]
    status.setdefault("startTime", now())
    if is_true({"status": status}, "Suspended"):
        _set(status, one, "Suspended", "is resumed.", value="False")
    if not status.get("conditions"):
        _set(status, one, "Created", "is created.")
    wanted = [(kind, index) for kind, part in replicas.items() for index in range(part["replicas"])]
    names = {f"{name}-{kind.lower()}-{index}" for kind, index in wanted}
    for extra in pods.keys() - names:
        _delete(server, pods[extra])
    counts = {kind: {"active": 0, "succeeded": 0, "failed": 0} for kind in replicas}
    for kind, index in wanted:
        pod = pods.get(f"{name}-{kind.lower()}-{index}")
        if pod is None:
            service, pod = _replica(one, kind, index)
            server.ensure(service)
            server.try_to_create(pod, owner=one)
            continue
        phase = pod["status"]["phase"]
        if phase == "Failed" and deleted(pod):
            continue
        if phase == "Failed":
            _after_failure(server, one, status, kind, pod)
        key = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}.get(phase)
        if key:
            counts[kind][key] += 1
    status["replicaStatuses"] = counts
    _set_progress(status, one, counts)


def _after_failure(server: Server, one: Object, status: Object, kind: str, pod: Object) -> None:
    policy = one["spec"]["pytorchReplicaSpecs"][kind].get("restartPolicy", "OnFailure")
    assert policy == "ExitCode", policy
    reason, message = "Failed", f'is failing because "{kind}" replica(s) failed.'
    if exit_code(pod) >= 128:
        reason, message = "Restarting", f"is restarting because {kind} replica(s) failed."
        server.delete(pod)
    server.event(one, f"PyTorchJob{reason}", message, kind="Warning")
    _set(status, one, reason, message)


def _set_progress(status: Object, one: Object, counts: dict[str, dict[str, int]]) -> None:
    """Set the conditions that follow from the Master or, without one, from the Workers."""
    replicas = one["spec"]["pytorchReplicaSpecs"]
    main = "Master" if "Master" in replicas else "Worker"
    if counts[main]["active"]:
        _set(status, one, "Running", "is running.")
    if counts[main]["succeeded"] == replicas[main]["replicas"]:
        _set(status, one, "Succeeded", "is successfully completed.")
        return
    for kind, count in counts.items():
        if count["failed"] and replicas[kind]["replicas"] > count["succeeded"] + count["active"]:
            message = f"is restarting because {count['failed']} {kind} replica(s) failed."
            _set(status, one, "Restarting", message)


def _set(status: Object, one: Object, kind: str, message: str, *, value: str = "True") -> None:
    """Set a condition; Running and Restarting exclude each other, and a final condition ends Running."""
    if is_true({"status": status}, "Failed"):
        return
    message, reason = f"PyTorchJob {one['metadata']['name']} {message}", f"PyTorchJob{kind}"
    other = {"Running": "Restarting", "Restarting": "Running"}.get(kind)
    status["conditions"] = [c for c in status.get("conditions", []) if c["type"] != other]
    if kind in ("Succeeded", "Failed", "Suspended"):
        set_condition(status, "Running", reason, message, value="False")
    set_condition(status, kind, reason, message, value=value)


def _delete(server: Server, pod: Object) -> None:
    if not deleted(pod):
        server.delete(pod)


def _replica(one: Object, kind: str, index: int) -> tuple[Object, Object]:
    """Return a replica's Service and pod."""
    name = f"{one['metadata']['name']}-{kind.lower()}-{index}"
    own = {
        f"{_KEY}/operator-name": "pytorchjob-controller",
        f"{_KEY}/job-name": one["metadata"]["name"],
        f"{_KEY}/replica-type": kind.lower(),
        f"{_KEY}/replica-index": str(index),
    }
    service = headless(one, name, own, unready=False)
    template = copy.deepcopy(one["spec"]["pytorchReplicaSpecs"][kind]["template"])
    metadata = template.get("metadata", {})
    role = {f"{_KEY}/job-role": "master"} if kind == "Master" else {}
    metadata["labels"] = metadata.get("labels", {}) | own | role
    (container,) = (c for c in template["spec"]["containers"] if c["name"] == "pytorch")
    added = _variables(one, kind, index, container)
    container["env"] = [*container.get("env", []), *added]
    spec = template["spec"] | {"restartPolicy": "Never"}
    status = {"phase": "Pending"}
    return service, child(one, "v1", "Pod", name, metadata=metadata, spec=spec, status=status)


def _variables(one: Object, kind: str, index: int, container: Object) -> list[dict[str, str]]:
    """Return the variables that setPodEnv adds, with and without an elastic policy."""
    spec, name = one["spec"], one["metadata"]["name"]
    replicas = spec["pytorchReplicaSpecs"]
    (port,) = (p["containerPort"] for p in container["ports"] if p["name"] == "pytorchjob-port")
    total = sum(part["replicas"] for part in replicas.values())
    rank = str(index if kind == "Master" or "Master" not in replicas else index + 1)
    values = {"PET_NPROC_PER_NODE": spec["nprocPerNode"], "PYTHONUNBUFFERED": "1"}
    if policy := spec.get("elasticPolicy"):
        values |= {
            "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
            "PET_RDZV_BACKEND": policy["rdzvBackend"],
            "PET_RDZV_ENDPOINT": f"{name}-worker-0:{port}",
            "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
        }
    else:
        # WORLD_SIZE and RANK count ranks and nodes as the operator does.
        values |= {
            "MASTER_ADDR": "localhost" if kind == "Master" else f"{name}-master-0",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(total * int(spec["nprocPerNode"])),
            "RANK": rank,
            "PET_NNODES": str(total),
            "PET_NODE_RANK": rank,
            "PET_MASTER_ADDR": f"{name}-master-0",
            "PET_MASTER_PORT": str(port),
        }
    return [{"name": key, "value": value} for key, value in values.items()]
