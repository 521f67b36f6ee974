"""What a cluster can take: the launchers it serves, what its nodes hold, what a namespace allows.

for finding in examine(cluster): print(finding.about, finding.words)
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from k8s.cluster import control, progress, state
from k8s.cluster.client import api, objects
from k8s.cluster.client.api import Cluster, Forbidden, Missing, Object
from k8s.cluster.client.objects import NotServed
from k8s.plan.status import Kind

_KUBERNETES = (1, 31)  # the first whose Jobs tell failures apart (podFailurePolicy) for good
_NEEDS = {  # what a launcher's job is made of beside its own kind
    "trainjob": [
        ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ],
    "volcano": [control.COMMAND],
}
# Volumes that several nodes write: a class does not say it, its provisioner's name does.
_SHARED = (
    *("cephfs", "efs.csi", "filestore", "file.csi.azure", "fsx.csi", "glusterfs", "juicefs"),
    *("longhorn", "lustre", "nfs", "portworx", "quobyte", "seaweedfs", "smb.csi", "weka"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `good` is None where it is neither good nor bad."""

    about: str
    good: bool | None
    words: str


def examine(cluster: Cluster) -> Iterator[Finding]:
    """Yield what there is to know. A part that may not be seen is said to be so."""
    yield _part(cluster, "kubernetes", _version)
    takes = []
    for kind in state.kinds():
        finding = _launcher(cluster, kind)
        takes += [kind.launcher] if finding.good else []
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
    words = f"this cluster can take {', '.join(takes) or 'none; install the API of one'}"
    yield Finding("launchers", good=bool(takes), words=words)


def _part(cluster: Cluster, about: str, part: Callable[[Cluster], Finding]) -> Finding:
    try:
        return part(cluster)
    except (Forbidden, Missing, NotServed) as fault:
        return Finding(about, None, str(fault))


def _version(cluster: Cluster) -> Finding:
    told = api.call(cluster, "GET", "/version")
    # a cloud's minor is "31+"
    numbers = [
        int("".join(c for c in str(told.get(part)) if c.isdecimal()) or 0)
        for part in ("major", "minor")
    ]
    good = (numbers[0], numbers[1]) >= _KUBERNETES
    need = "" if good else f"; Jobs that tell failures apart need {_KUBERNETES[0]}.{_KUBERNETES[1]}"
    return Finding("kubernetes", good, f"{told.get('gitVersion')}{need}")


def _launcher(cluster: Cluster, kind: Kind) -> Finding:
    about = f"launcher {kind.launcher}"
    try:
        for api_version, needed in [(kind.api_version, kind.kind), *_NEEDS.get(kind.launcher, [])]:
            objects.resource(cluster, api_version, needed)
    except NotServed as fault:
        return Finding(about, good=False, words=str(fault))
    return Finding(about, good=True, words=f"{kind.kind} of {kind.api_version}")


def _all(cluster: Cluster, path: str) -> list[Object]:
    return objects.listed(cluster, path, {"limit": 500})


def _names(items: list[Object]) -> str:
    return ", ".join(item["metadata"]["name"] for item in items)


def _nodes(cluster: Cluster) -> Finding:
    nodes = _all(cluster, "/api/v1/nodes")
    held: Counter[str] = Counter()
    for node in nodes:
        for name, amount in node.get("status", {}).get("allocatable", {}).items():
            if "/" in name and str(amount).isdecimal():  # an extended resource: gpu, rdma
                held[name] += int(amount)
    devices = ", ".join(f"{count} {name}" for name, count in sorted(held.items()) if count)
    count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    return Finding("nodes", bool(nodes), f"{count} with {devices or 'no accelerators'}")


def _runtimes(cluster: Cluster) -> Finding:
    names = _names(_all(cluster, "/apis/node.k8s.io/v1/runtimeclasses"))
    return Finding("runtime classes", good=None, words=names or "none; the default runs every pod")


def _storage(cluster: Cluster) -> Finding:
    classes = _all(cluster, "/apis/storage.k8s.io/v1/storageclasses")
    marked = "storageclass.kubernetes.io/is-default-class"
    words = []
    shared = False
    for item in classes:
        notes = []
        if (item["metadata"].get("annotations") or {}).get(marked) == "true":
            notes.append("default")
        if any(part in str(item.get("provisioner")) for part in _SHARED):
            notes.append("ReadWriteMany")
            shared = True
        words.append(item["metadata"]["name"] + (f" ({', '.join(notes)})" if notes else ""))
    none = (
        ""
        if shared
        else "; none known to be ReadWriteMany, which checkpoints of several nodes need"
    )
    return Finding("storage classes", shared or None, (", ".join(words) or "none") + none)


def _queues(cluster: Cluster) -> Finding:
    for version in control.WORKLOADS:
        try:
            items = objects.find(cluster, version, "LocalQueue")
        except NotServed as missing:
            fault = missing
            continue
        queues = [
            f"{item['metadata']['name']} ({item.get('spec', {}).get('clusterQueue')})"
            for item in items
        ]
        return Finding("queues", good=None, words=f"Kueue's: {', '.join(queues) or 'none here'}")
    raise fault


def _quota(cluster: Cluster) -> Finding:
    words = [
        f"{name} {item['status'].get('used', {}).get(name, '0')} of {hard}"
        for item in objects.find(cluster, "v1", "ResourceQuota")
        for name, hard in sorted(item.get("status", {}).get("hard", {}).items())
    ]
    return Finding("quota", good=None, words=", ".join(words) or "none set")


def _security(cluster: Cluster) -> Finding:
    path = f"/api/v1/namespaces/{cluster.namespace}"
    found = api.call(cluster, "GET", path).get("metadata") or {}
    level = (found.get("labels") or {}).get("pod-security.kubernetes.io/enforce")
    words = f"enforced: {level or 'nothing'}; the pods of a job are made for restricted"
    return Finding("pod security", good=None, words=words)


def _metrics(cluster: Cluster) -> Finding:
    objects.resource(cluster, *progress.METRICS)
    return Finding("metrics", good=None, words="measured, for `top`")
