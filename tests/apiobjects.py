"""What both of the tests' API servers know: the kinds, and how objects are found and patched.

served = discovered("/apis/batch/v1", GROUPS)
"""

from typing import Any

Object = dict[str, Any]

GROUPS = {
    "v1": {
        "Pod": "pods",
        "Service": "services",
        "ConfigMap": "configmaps",
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
    "monitoring.coreos.com/v1": {"PodMonitor": "podmonitors"},
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
EVERYWHERE = {"Namespace", "Node", "RuntimeClass", "StorageClass"}


def discovered(path: str, groups: dict[str, dict[str, str]]) -> Object | None:
    """Return what is served at a path of discovery, None for any other path."""
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version in groups:
        kinds = groups[version].items()
        entries = [{"kind": k, "name": n, "namespaced": k not in EVERYWHERE} for k, n in kinds]
        return {"resources": entries}
    mine = [group for group in groups if group.startswith(f"{version}/")]
    return {"versions": [{"version": group.split("/")[1]} for group in mine]} if mine else None


PLURALS = {plural for kinds in GROUPS.values() for plural in kinds.values()}


def selected(found: Object, query: dict[str, str]) -> bool:
    labels = found["metadata"].get("labels", {})
    wanted = [pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair]
    field, _, value = query.get("fieldSelector", "").partition("=")
    named = found["metadata"]["name"] == value if field == "metadata.name" else True
    typed = found.get("type") == value if field == "type" else True
    return named and typed and all(labels.get(k) == v for k, v in wanted)


def merge(one: Object, other: Object) -> Object:
    """RFC 7386: null removes."""
    merged = {key: value for key, value in one.items() if other.get(key, value) is not None}
    for key, value in other.items():
        if isinstance(value, dict):
            merged[key] = merge(one.get(key) or {}, value)
        elif value is not None:
            merged[key] = value
    return merged


def replace(found: Any, pointer: str, value: Any) -> None:
    *parents, last = pointer.strip("/").split("/")
    for part in parents:
        found = found[int(part) if isinstance(found, list) else part]
    assert last in found, f"{pointer} is not there"
    found[last] = value
