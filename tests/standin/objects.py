"""Kubernetes objects as dictionaries: kinds and paths, and the operations that controllers share.

path = path_of({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "lab"}})
"""

from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]

GROUPS = {
    "v1": {
        "Pod": "pods",
        "Service": "services",
        "ConfigMap": "configmaps",
        "Secret": "secrets",
        "Event": "events",
        "ResourceQuota": "resourcequotas",
        "PersistentVolumeClaim": "persistentvolumeclaims",
        "Namespace": "namespaces",
        "Node": "nodes",
    },
    "apps/v1": {"Deployment": "deployments"},
    "batch/v1": {"Job": "jobs"},
    "batch.volcano.sh/v1alpha1": {"Job": "jobs"},
    "bus.volcano.sh/v1alpha1": {"Command": "commands"},
    "jobset.x-k8s.io/v1alpha2": {"JobSet": "jobsets"},
    "kubeflow.org/v1": {"PyTorchJob": "pytorchjobs"},
    "kueue.x-k8s.io/v1beta2": {"LocalQueue": "localqueues", "Workload": "workloads"},
    "metrics.k8s.io/v1beta1": {"PodMetrics": "pods"},
    "scheduling.volcano.sh/v1beta1": {"PodGroup": "podgroups"},
    "monitoring.coreos.com/v1": {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "node.k8s.io/v1": {"RuntimeClass": "runtimeclasses"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "scheduling.x-k8s.io/v1alpha1": {"PodGroup": "podgroups"},
    "storage.k8s.io/v1": {"StorageClass": "storageclasses"},
    "trainer.kubeflow.org/v1alpha1": {
        "TrainJob": "trainjobs",
        "TrainingRuntime": "trainingruntimes",
    },
    "workload.codeflare.dev/v1beta2": {"AppWrapper": "appwrappers"},
}
CLUSTER_WIDE = {"Namespace", "Node", "RuntimeClass", "StorageClass"}
PLURALS = {plural for kinds in GROUPS.values() for plural in kinds.values()}


def collection(api_version: str, kind: str, namespace: str) -> str:
    """Return the path under which all objects of a kind are."""
    prefix = "/apis" if "/" in api_version else "/api"
    inside = "" if kind in CLUSTER_WIDE else f"/namespaces/{namespace}"
    return f"{prefix}/{api_version}{inside}/{GROUPS[api_version][kind]}"


def path_of(one: Object) -> str:
    metadata = one["metadata"]
    place = collection(one["apiVersion"], one["kind"], metadata.get("namespace", ""))
    return f"{place}/{metadata['name']}"


def namespace_in(path: str) -> str:
    """Return the namespace of the object at a path, or an empty string."""
    parts = path.split("/")
    return parts[-3] if parts[-4] == "namespaces" else ""


def matches(one: Object, query: dict[str, str]) -> bool:
    """Return whether an object fits the label selector and the field selector of a query."""
    labels = one["metadata"].get("labels", {})
    wanted = [pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair]
    field, _, value = query.get("fieldSelector", "").partition("=")
    found = {"metadata.name": one["metadata"]["name"], "type": one.get("type")}
    return found.get(field, value) == value and all(labels.get(k) == v for k, v in wanted)


def merge(one: Object, other: Object) -> Object:
    """Apply a merge patch (RFC 7386): null removes a field."""
    merged = {key: value for key, value in one.items() if other.get(key, value) is not None}
    for key, value in other.items():
        if isinstance(value, dict):
            merged[key] = merge(one.get(key) or {}, value)
        elif value is not None:
            merged[key] = value
    return merged


def replace(one: Any, pointer: str, value: Any) -> None:
    """Do the `replace` of a JSON patch, in place."""
    *parents, last = pointer.strip("/").split("/")
    for part in parents:
        one = one[int(part) if isinstance(one, list) else part]
    assert last in one, f"{pointer} is not there"
    one[last] = value


def child(owner: Object, api_version: str, kind: str, name: str, **parts: Any) -> Object:
    """Return an object that belongs to `owner`; `metadata` in `parts` adds to its own."""
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    metadata = {
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "ownerReferences": [reference | {"controller": True, "blockOwnerDeletion": True}],
    }
    metadata |= parts.pop("metadata", {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **parts}


def headless(owner: Object, name: str, selector: dict[str, str], *, unready: bool) -> Object:
    """Return the Service of `owner` that names its pods; with `unready`, also those not ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": unready, "selector": selector}
    return child(owner, "v1", "Service", name, spec=spec)


def owned_by(one: Object, owner: Object) -> bool:
    wanted = (owner["kind"], owner["metadata"]["uid"])
    references = one["metadata"].get("ownerReferences") or []
    return any((found["kind"], found["uid"]) == wanted for found in references)


def finished(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def deleted(one: Object) -> bool:
    """Return whether an object is being deleted."""
    return "deletionTimestamp" in one["metadata"]


def exit_code(pod: Object) -> int:
    """Return the exit code of a finished pod's only container."""
    code: int = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    return code


def now() -> str:
    return timestamp(datetime.now(UTC))


def timestamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(
    status: Object, kind: str, reason: str, message: str, *, value: str = "True"
) -> None:
    """Set a condition in a status; a false one is not added if it is missing."""
    new = {"type": kind, "status": value, "reason": reason, "message": message}
    conditions = [dict(one) for one in status.get("conditions", [])]
    before = next((one for one in conditions if one["type"] == kind), None)
    if before is None:
        if value == "False":
            return
        conditions.append(new | {"lastTransitionTime": now()})
    elif {key: before.get(key) for key in new} != new:
        before.update(new, lastTransitionTime=now())
    status["conditions"] = conditions


def is_true(one: Object, kind: str) -> Object | None:
    """Return a condition of an object if its status is true."""
    conditions = one.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind and c["status"] == "True"), None)
