"""The Role that allows the verbs of `python -m k8s` on a job, and no change to anything else.

render.py job.yaml --launcher jobset --rbac user:jane | kubectl apply -f -
"""

import re
from collections.abc import Iterator
from typing import Any

from k8s.base.errors import config_error
from k8s.cluster import control
from k8s.cluster.jobs import companion_kinds
from k8s.cluster.observe import job_progress, why
from k8s.cluster.submit import copy_code, rendezvous_secret
from k8s.cluster.wrapped_job import WRAPPER, with_contents
from k8s.plan.job_kind import Api, JobKind
from k8s.render.manifests import Rendered

_API = "rbac.authorization.k8s.io"
_READ, _WRITE = ("get", "list", "watch"), ("create", "patch", "delete")


def render(
    jobs: list[Rendered], subject: str, *, any_name: bool, executes: bool
) -> list[dict[str, Any]]:
    """Return a Role and its binding for every launcher, and a ClusterRole that only `doctor` needs.

    The Roles are for the jobs' own objects; with `any_name`, for all objects of these kinds in the
    namespace. With `executes` they also allow any command in the pods there. Raises Fault(64) for a
    launcher without a cluster, and for an invalid subject.
    """
    bound_to = _subject(subject)
    made: list[dict[str, Any]] = []
    for one in jobs:
        if one.launcher.job_kind is None:
            raise config_error(f"--rbac: {one.launcher.name} runs without a cluster; leave it out")
        namespace = one.plan.identity.metadata.get("namespace")
        place = {"namespace": str(namespace)} if namespace else {}
        name = f"muster-{one.launcher.name}" + ("" if any_name else f"-{one.plan.name}")
        allowed = list(rules(one.launcher.job_kind, one, any_name=any_name))
        allowed += [_in_pods("pods/exec")] if executes else []
        made += _pair("Role", name, place, allowed, bound_to)
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
    # Each subject has a binding with its own name: with one name, the second would replace the first. A
    # binding's name may have any character but / and %.
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


def rules(kind: JobKind, job: Rendered, *, any_name: bool) -> Iterator[dict[str, Any]]:
    """Yield the rules for what the verbs request of a job kind: for one job, or for jobs of any name.

    The rules for reading name no objects, because a list request has no name. A server-side apply needs
    patch and create; the API server checks both with the object's name (patch.go of k8s.io/apiserver).
    """
    names = None if any_name else _names(kind, job)
    carried = any(one.template == "carried" for one in job.plan.extras)

    def changing(api_version: str, other: str, *verbs: str) -> Iterator[dict[str, Any]]:
        # The ConfigMap of a carried file has its hash in its name.
        if names is None or (carried and (api_version, other) == ("v1", "ConfigMap")):
            yield _rule(api_version, other, *verbs)
        elif of_kind := names.get((api_version, other)):
            yield _rule(api_version, other, *verbs) | {"resourceNames": of_kind}

    if job.plan.app_wrapper:
        yield _rule(*WRAPPER, *_READ)
        yield from changing(*WRAPPER, *_WRITE)
    yield _rule(kind.api_version, kind.kind, *_READ)
    yield from changing(kind.api_version, kind.kind, *_WRITE)
    for api_version, other, verbs, _ in kind.rights:
        yield from changing(api_version, other, *verbs)
    if kind.suspend_field and (any_name or job.plan.scheduled.queue):
        # Kueue makes it for a queued job, and chooses its name.
        yield _rule(control.KUEUE_VERSIONS[0], "Workload", "list", "patch")
    for api_version, other in companion_kinds(kind):
        yield _rule(api_version, other, "list")
        yield from changing(api_version, other, *_WRITE)
    yield from changing("v1", "PersistentVolumeClaim", "create", "patch")  # `delete` keeps it
    yield from changing("v1", "Secret", *_WRITE)  # of the rendezvous; no Secret is read
    if not any_name and (folder := copy_code.find(job.objects)):
        pod = {"resourceNames": [folder.pod["metadata"]["name"]]}
        yield _rule("v1", "Pod", "get", "create", "patch", "delete") | pod
        yield _in_pods("pods/exec") | pod
        yield _rule("v1", "PersistentVolumeClaim", "get") | {"resourceNames": [folder.claim]}
    yield _rule("v1", "Pod", "list")
    yield {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
    yield _in_pods("pods/portforward")
    yield _rule("v1", "Event", "list")
    yield from (_rule(*made, "list") for made in why.CHILDREN)
    yield _rule(job_progress.METRICS[0], "Pod", "list")
    yield _rule("kueue.x-k8s.io/v1beta2", "LocalQueue", "list")
    yield _rule("v1", "ResourceQuota", "list")
    yield _rule("v1", "Namespace", "get")


def _names(kind: JobKind, job: Rendered) -> dict[Api, list[str]]:
    """Return the names, by kind, of the objects that are rendered with a job or that the verbs make."""
    found: dict[Api, list[str]] = {}
    for one in with_contents(job.objects):
        found.setdefault((one["apiVersion"], one["kind"]), []).append(one["metadata"]["name"])
    for api_version, other, _, forms in kind.rights:
        found[api_version, other] = [form.format(job.plan.name) for form in forms]
    if reference := rendezvous_secret.find_reference(job.objects):
        found["v1", "Secret"] = [reference["name"]]
    return found


def _in_pods(resource: str) -> dict[str, Any]:
    # a WebSocket is opened by GET, and counts as create from Kubernetes 1.35 on
    return {"apiGroups": [""], "resources": [resource], "verbs": ["get", "create"]}


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
