"""The least that somebody must be allowed to use the verbs of `python -m k8s` on a launcher.

render.py job.yaml --launcher jobset --rbac user:jane | kubectl apply -f -
"""

import re
from collections.abc import Iterator
from typing import Any

from k8s.cluster import control, progress
from k8s.cluster.jobs import beside
from k8s.cluster.state import kinds
from k8s.cluster.wrapped import WRAPPER
from k8s.plan.launcher import Launcher
from k8s.plan.model import Plan
from k8s.plan.status import Kind
from trainer.config.exits import Exit, Fault

_API = "rbac.authorization.k8s.io"
_ALL = ("get", "list", "watch", "create", "patch", "delete")


def render(planned: list[tuple[Plan, Launcher]], subject: str) -> list[dict[str, Any]]:
    """Return a Role and its binding for every launcher, and what `doctor` alone takes.

    Raises Fault(64) for a launcher without a cluster, and for who is no subject.
    """
    who = _subject(subject)
    known = {kind.launcher: kind for kind in kinds()}
    made: list[dict[str, Any]] = []
    for plan, launcher in planned:
        if launcher.name not in known:
            raise Fault(
                Exit.CONFIG, f"--rbac: {launcher.name} runs without a cluster; leave one out"
            )
        namespace = plan.metadata.get("namespace")
        place = {"namespace": str(namespace)} if namespace else {}
        allowed = list(rules(known[launcher.name]))
        if plan.app_wrapper:
            allowed.insert(0, _rule(*WRAPPER, *_ALL))
        made += _pair("Role", f"muster-{launcher.name}", place, allowed, who)
    return [*made, *_pair("ClusterRole", "muster-doctor", {}, _DOCTOR, who)]


def _subject(text: str) -> dict[str, str]:
    kind, _, name = text.partition(":")
    namespace, _, account = name.partition(":")
    if kind == "serviceaccount" and namespace and account:
        return {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    if kind not in ("user", "group") or not name:
        raise Fault(
            Exit.CONFIG,
            f"--rbac {text}: not user:NAME, group:NAME or serviceaccount:NAMESPACE:NAME",
        )
    return {"kind": kind.capitalize(), "name": name, "apiGroup": _API}


def _pair(
    kind: str, name: str, place: dict[str, str], allowed: list[dict[str, Any]], who: dict[str, str]
) -> list[dict[str, Any]]:
    """Return a role and what binds it to `who`."""
    # A name of its own for each subject, else the second would take the right from the first; the API
    # lets it hold anything but these.
    whole = ":".join(
        part for part in (who["kind"].lower(), who.get("namespace"), who["name"]) if part
    )
    bound = f"{name}:{re.sub('[/%]', '-', whole)}"
    api: dict[str, Any] = {"apiVersion": f"{_API}/v1"}
    role = {**api, "kind": kind, "metadata": {"name": name, **place}, "rules": allowed}
    binding = {
        **api,
        "kind": f"{kind}Binding",
        "metadata": {"name": bound, **place},
        "roleRef": {"apiGroup": _API, "kind": kind, "name": name},
        "subjects": [who],
    }
    return [role, binding]


def rules(kind: Kind) -> Iterator[dict[str, Any]]:
    """Yield what the verbs ask of the API for a kind of job; a server-side apply is patch and create."""
    yield _rule(kind.api_version, kind.kind, *_ALL)
    if kind.launcher == "jobset":  # `scale`, where the JobSet itself may not change
        yield _rule("batch/v1", "Job", "patch")
    if not kind.suspend:
        yield _rule(*control.COMMAND, "create", "patch")
    else:  # of a queue; Volcano has its own
        yield _rule(control.WORKLOADS[0], "Workload", "list", "patch")
    for api_version, other in beside(kind.launcher):
        yield _rule(api_version, other, "list", "create", "patch", "delete")
    yield _rule("v1", "PersistentVolumeClaim", "create", "patch")  # volumes stay
    yield _rule("v1", "Pod", "list")
    yield {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
    # a WebSocket is opened by GET, and counts as create from Kubernetes 1.35 on
    yield {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}
    yield _rule("v1", "Event", "list")
    yield {
        "apiGroups": [progress.METRICS[0].split("/")[0]],
        "resources": ["pods"],
        "verbs": ["list"],
    }
    yield _rule("kueue.x-k8s.io/v1beta2", "LocalQueue", "list")
    yield _rule("v1", "ResourceQuota", "list")
    yield _rule("v1", "Namespace", "get")


def _rule(api_version: str, kind: str, *verbs: str) -> dict[str, Any]:
    plural = re.sub("y$", "ie", kind.lower()) + ("es" if kind.endswith("ss") else "s")
    return {
        "apiGroups": [api_version.rpartition("/")[0]],
        "resources": [plural],
        "verbs": list(verbs),
    }


_DOCTOR = [
    _rule("v1", "Node", "list"),
    _rule("node.k8s.io/v1", "RuntimeClass", "list"),
    _rule("storage.k8s.io/v1", "StorageClass", "list"),
]
