"""The Role with which a user can run the verbs of `python -m k8s` on a launcher, and no more.

render.py job.yaml --launcher jobset --rbac user:jane | kubectl apply -f -
"""

import re
from collections.abc import Iterator
from typing import Any

from k8s.base.errors import config_error
from k8s.cluster import control, job_progress
from k8s.cluster.jobs import companion_kinds
from k8s.cluster.wrapped_job import WRAPPER
from k8s.plan.job_kind import JobKind
from k8s.plan.launcher import Launcher
from k8s.plan.model import Plan

_API = "rbac.authorization.k8s.io"
_ALL = ("get", "list", "watch", "create", "patch", "delete")


def render(planned: list[tuple[Plan, Launcher]], subject: str) -> list[dict[str, Any]]:
    """Return a Role and its binding for every launcher, and a ClusterRole that only `doctor` needs.

    Raises Fault(64) for a launcher without a cluster, and for an invalid subject.
    """
    bound_to = _subject(subject)
    made: list[dict[str, Any]] = []
    for plan, launcher in planned:
        if launcher.job_kind is None:
            raise config_error(f"--rbac: {launcher.name} runs without a cluster; leave one out")
        namespace = plan.identity.metadata.get("namespace")
        place = {"namespace": str(namespace)} if namespace else {}
        allowed = list(rules(launcher.job_kind))
        if plan.app_wrapper:
            allowed.insert(0, _rule(*WRAPPER, *_ALL))
        made += _pair("Role", f"muster-{launcher.name}", place, allowed, bound_to)
    return [*made, *_pair("ClusterRole", "muster-doctor", {}, _DOCTOR, bound_to)]


def _subject(text: str) -> dict[str, str]:
    kind, _, name = text.partition(":")
    namespace, _, account = name.partition(":")
    if kind == "serviceaccount" and namespace and account:
        return {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    if kind not in ("user", "group") or not name:
        raise config_error(
            f"--rbac {text}: not user:NAME, group:NAME or serviceaccount:NAMESPACE:NAME"
        )
    return {"kind": kind.capitalize(), "name": name, "apiGroup": _API}


def _pair(
    kind: str,
    name: str,
    place: dict[str, str],
    allowed: list[dict[str, Any]],
    subject: dict[str, str],
) -> list[dict[str, Any]]:
    """Return a role and its binding to a subject."""
    # One binding for each subject: with one name for all, the second would replace the first. The name
    # of a binding may hold any character but / and %.
    parts = (subject["kind"].lower(), subject.get("namespace"), subject["name"])
    bound = f"{name}:{re.sub('[/%]', '-', ':'.join(filter(None, parts)))}"
    api: dict[str, Any] = {"apiVersion": f"{_API}/v1"}
    role = {**api, "kind": kind, "metadata": {"name": name, **place}, "rules": allowed}
    binding = {
        **api,
        "kind": f"{kind}Binding",
        "metadata": {"name": bound, **place},
        "roleRef": {"apiGroup": _API, "kind": kind, "name": name},
        "subjects": [subject],
    }
    return [role, binding]


def rules(kind: JobKind) -> Iterator[dict[str, Any]]:
    """Yield the rules of the verbs' requests for a job kind; a server-side apply is patch and create."""
    yield _rule(kind.api_version, kind.kind, *_ALL)
    for api_version, other, verbs in kind.rights:
        yield _rule(api_version, other, *verbs)
    if kind.suspend_field:  # which Kueue needs to queue a job
        yield _rule(control.KUEUE_VERSIONS[0], "Workload", "list", "patch")
    for api_version, other in companion_kinds(kind):
        yield _rule(api_version, other, "list", "create", "patch", "delete")
    yield _rule("v1", "PersistentVolumeClaim", "create", "patch")  # which `delete` keeps
    yield _rule("v1", "Secret", "create", "patch", "delete")  # the rendezvous'; none is read
    yield _rule("v1", "Pod", "list")
    yield {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
    # a WebSocket is opened by GET, and counts as create from Kubernetes 1.35 on
    yield {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}
    yield _rule("v1", "Event", "list")
    yield _rule(job_progress.METRICS[0], "Pod", "list")
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
