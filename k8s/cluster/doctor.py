"""Examine a cluster: launchers it serves, devices, storage, queues, quota, security of the namespace.

for finding in examine(cluster): print(finding.about, finding.text)
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from k8s import launchers
from k8s.cluster import control
from k8s.cluster.client import api, objects
from k8s.cluster.client.api import Cluster, Forbidden, Missing
from k8s.cluster.client.objects import NotServed
from k8s.cluster.observe import job_progress
from k8s.plan.job_kind import JobKind

_KUBERNETES = (1, 31)  # the first version with a stable podFailurePolicy of Jobs
# Parts of the names of provisioners with ReadWriteMany volumes; a StorageClass has no field for it.
_SHARED = (
    *("cephfs", "efs.csi", "filestore", "file.csi.azure", "fsx.csi", "glusterfs", "juicefs"),
    *("longhorn", "lustre", "nfs", "portworx", "quobyte", "seaweedfs", "smb.csi", "weka"),
)


@dataclass(frozen=True)
class Finding:
    """What was found about one part of the cluster. `good` is None if it is neither good nor bad."""

    about: str
    good: bool | None
    text: str


def examine(cluster: Cluster) -> Iterator[Finding]:
    """Yield a finding for each part of the cluster; if one may not be read, the finding says so."""
    yield _part(cluster, "kubernetes", _version)
    usable = []
    for kind in launchers.job_kinds():
        finding = _launcher(cluster, kind)
        usable += [kind.launcher] if finding.good else []
        yield finding
    parts: list[tuple[str, Callable[[Cluster], Finding]]] = [
        ("nodes", _nodes),
        ("runtime classes", _runtimes),
        ("storage classes", _storage),
        ("queues", _queues),
        ("quota", _quota),
        ("pod security", _security),
        ("metrics", _metrics),
    ]
    for about, part in parts:
        yield _part(cluster, about, part)
    runs = f"this cluster can run {', '.join(usable)}"
    text = runs if usable else "this cluster can run no launcher; install the API of one"
    yield Finding("launchers", good=bool(usable), text=text)


def _part(cluster: Cluster, about: str, part: Callable[[Cluster], Finding]) -> Finding:
    try:
        return part(cluster)
    except (Forbidden, Missing, NotServed) as fault:
        return Finding(about, None, str(fault))


def _version(cluster: Cluster) -> Finding:
    answer = api.call(cluster, "GET", "/version")
    # the minor version may be "31+" in a cloud
    major, minor = (
        int("".join(c for c in str(answer.get(part)) if c.isdecimal()) or 0)
        for part in ("major", "minor")
    )
    good = (major, minor) >= _KUBERNETES
    need = "" if good else f"; podFailurePolicy of Jobs needs {_KUBERNETES[0]}.{_KUBERNETES[1]}"
    return Finding("kubernetes", good, f"{answer.get('gitVersion')}{need}")


def _launcher(cluster: Cluster, kind: JobKind) -> Finding:
    about = f"launcher {kind.launcher}"
    try:
        for api_version, needed in [(kind.api_version, kind.kind), *kind.requires]:
            objects.resource(cluster, api_version, needed)
    except NotServed as fault:
        return Finding(about, good=False, text=str(fault))
    return Finding(about, good=True, text=f"{kind.kind} of {kind.api_version}")


def _nodes(cluster: Cluster) -> Finding:
    nodes = objects.listed(cluster, "/api/v1/nodes")
    totals: Counter[str] = Counter()
    for node in nodes:
        for name, amount in node.get("status", {}).get("allocatable", {}).items():
            if "/" in name and str(amount).isdecimal():  # an extended resource: gpu, rdma
                totals[name] += int(amount)
    devices = ", ".join(f"{count} {name}" for name, count in sorted(totals.items()) if count)
    count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    return Finding("nodes", bool(nodes), f"{count} with {devices or 'no accelerators'}")


def _runtimes(cluster: Cluster) -> Finding:
    items = objects.listed(cluster, "/apis/node.k8s.io/v1/runtimeclasses")
    names = ", ".join(item["metadata"]["name"] for item in items)
    return Finding("runtime classes", good=None, text=names or "none; every pod uses the default")


def _storage(cluster: Cluster) -> Finding:
    default = "storageclass.kubernetes.io/is-default-class"
    names = []
    shared = False
    for item in objects.listed(cluster, "/apis/storage.k8s.io/v1/storageclasses"):
        notes = []
        if (item["metadata"].get("annotations") or {}).get(default) == "true":
            notes.append("default")
        if any(part in str(item.get("provisioner")) for part in _SHARED):
            notes.append("ReadWriteMany")
            shared = True
        names.append(item["metadata"]["name"] + (f" ({', '.join(notes)})" if notes else ""))
    text = ", ".join(names) or "none"
    if not shared:
        text += "; none is known to be ReadWriteMany, which several nodes need for checkpoints"
    return Finding("storage classes", shared or None, text)


def _queues(cluster: Cluster) -> Finding:
    for version in control.KUEUE_VERSIONS:
        try:
            items = objects.find(cluster, version, "LocalQueue")
        except NotServed as missing:
            fault = missing
            continue
        queues = [
            f"{item['metadata']['name']} ({item.get('spec', {}).get('clusterQueue')})"
            for item in items
        ]
        return Finding("queues", good=None, text=f"of Kueue: {', '.join(queues) or 'none'}")
    raise fault


def _quota(cluster: Cluster) -> Finding:
    amounts = [
        f"{name} {item['status'].get('used', {}).get(name, '0')} of {hard}"
        for item in objects.find(cluster, "v1", "ResourceQuota")
        for name, hard in sorted(item.get("status", {}).get("hard", {}).items())
    ]
    return Finding("quota", good=None, text=", ".join(amounts) or "none set")


def _security(cluster: Cluster) -> Finding:
    path = f"/api/v1/namespaces/{cluster.namespace}"
    found = api.call(cluster, "GET", path).get("metadata") or {}
    level = (found.get("labels") or {}).get("pod-security.kubernetes.io/enforce")
    text = f"enforced: {level or 'nothing'}; a job's pods are made to meet restricted"
    return Finding("pod security", good=None, text=text)


def _metrics(cluster: Cluster) -> Finding:
    objects.resource(cluster, *job_progress.METRICS)
    return Finding("metrics", good=None, text="served; `top` shows them")
