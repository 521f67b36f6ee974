"""What a cluster can take: the launchers it serves, what its nodes hold, what a namespace allows."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from k8s.cluster import api, state
from k8s.cluster.api import Cluster
from trainer.exits import Exit, Fault


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `good` is None where it is neither good nor bad."""

    about: str
    good: bool | None
    words: str


def examine(cluster: Cluster) -> list[Finding]:
    """Return what there is to know. A part that may not be seen is said to be so."""
    findings = [_launcher(cluster, kind) for kind in state.kinds()]
    parts: list[tuple[str, Callable[[Cluster], Finding]]] = [
        ("nodes", _nodes),
        ("storage classes", _storage),
        ("queues", _queues),
        ("quota", _quota),
        ("pod security", _security),
    ]
    for about, part in parts:
        try:
            findings.append(part(cluster))
        except Fault as fault:
            if fault.code != Exit.CONFIG:
                raise
            findings.append(Finding(about, None, str(fault)))
    return findings


def _launcher(cluster: Cluster, kind: state.Kind) -> Finding:
    about = f"launcher {kind.launcher}"
    try:
        api.resource(cluster, kind.api_version, kind.kind)
    except Fault as fault:
        if fault.code != Exit.CONFIG:
            raise
        return Finding(about, good=False, words=str(fault))
    return Finding(about, good=True, words=f"{kind.kind} of {kind.api_version}")


def _nodes(cluster: Cluster) -> Finding:
    nodes = api.call(cluster, "GET", "/api/v1/nodes")["items"]
    held: Counter[str] = Counter()
    for node in nodes:
        for name, amount in node.get("status", {}).get("allocatable", {}).items():
            if "/" in name and str(amount).isdecimal():  # an extended resource: gpu, rdma
                held[name] += int(amount)
    devices = ", ".join(f"{count} {name}" for name, count in sorted(held.items()))
    return Finding("nodes", bool(nodes), f"{len(nodes)} nodes with {devices or 'no accelerators'}")


def _storage(cluster: Cluster) -> Finding:
    classes = api.call(cluster, "GET", "/apis/storage.k8s.io/v1/storageclasses")["items"]
    marked = "storageclass.kubernetes.io/is-default-class"
    words = [
        item["metadata"]["name"]
        + (" (default)" if item["metadata"].get("annotations", {}).get(marked) == "true" else "")
        for item in classes
    ]
    note = "; checkpoints of several nodes need one that can ReadWriteMany" if words else ""
    return Finding("storage classes", bool(words), (", ".join(words) or "none") + note)


def _queues(cluster: Cluster) -> Finding:
    items = api.find(cluster, "kueue.x-k8s.io/v1beta1", "LocalQueue", {})
    names = ", ".join(item["metadata"]["name"] for item in items)
    return Finding("queues", good=None, words=f"Kueue's local queues: {names or 'none'}")


def _quota(cluster: Cluster) -> Finding:
    items = api.find(cluster, "v1", "ResourceQuota", {})
    words = [
        f"{name} {item['status'].get('used', {}).get(name, '0')} of {hard}"
        for item in items
        for name, hard in sorted(item.get("status", {}).get("hard", {}).items())
    ]
    return Finding("quota", good=None, words=", ".join(words) or "none set")


def _security(cluster: Cluster) -> Finding:
    found = api.call(cluster, "GET", f"/api/v1/namespaces/{cluster.namespace}")
    level = (found["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce")
    return Finding("pod security", good=None, words=f"enforced: {level or 'nothing'}")
