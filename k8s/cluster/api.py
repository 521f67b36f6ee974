"""Requests to a cluster's API: bounded, tried again on 429 and 5xx, and one line when they fail.

cluster = connect(context=None, namespace="research")
"""

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from trainer.exits import Exit, Fault

Object = dict[str, Any]

FIELD_MANAGER = "muster"
_TRANSIENT = {429, 500, 502, 503, 504}
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"

# Where to get the API of a group that the cluster does not serve.
_INSTALL = {
    "jobset.x-k8s.io": "JobSet, https://jobset.sigs.k8s.io/docs/installation/",
    "kubeflow.org": "the training operator v1, https://github.com/kubeflow/training-operator",
    "trainer.kubeflow.org": "Kubeflow Trainer v2, https://www.kubeflow.org/docs/components/trainer/",
    "batch.volcano.sh": "Volcano, https://volcano.sh/en/docs/installation/",
    "scheduling.x-k8s.io": "scheduler-plugins, https://scheduler-plugins.sigs.k8s.io",
    "kueue.x-k8s.io": "Kueue, https://kueue.sigs.k8s.io/docs/installation/",
    "workload.codeflare.dev": "AppWrapper, https://project-codeflare.github.io/appwrapper/",
    "monitoring.coreos.com": "the Prometheus operator, https://prometheus-operator.dev",
}


@dataclass(frozen=True)
class Cluster:
    """A connection; `where` says in words which context and namespace it goes to.

    A request is given up after `timeout` seconds, all its attempts together.
    """

    client: Any
    namespace: str
    where: str
    timeout: float = 30.0


@dataclass(frozen=True)
class Resource:
    """How a kind is addressed: its API path, its plural, and whether it lives in a namespace."""

    path: str
    plural: str
    namespaced: bool


def connect(*, context: str | None, namespace: str | None, timeout: float = 30.0) -> Cluster:
    """Connect by the kubeconfig's context, or as a pod of the cluster where there is none.

    Raises Fault(64) when neither is there, or nothing says which namespace to use.
    """
    configuration = client.Configuration()
    try:
        config.load_kube_config(context=context, client_configuration=configuration)
        contexts, current = config.list_kube_config_contexts()
        chosen = next((c for c in contexts if c["name"] == context), current)
        where, own = f"context {chosen['name']}", chosen["context"].get("namespace")
    except ConfigException as error:
        if context is not None:
            raise Fault(Exit.CONFIG, f"--context {context}: {_line(error)}") from None
        try:
            config.load_incluster_config(client_configuration=configuration)
        except ConfigException:
            raise Fault(
                Exit.CONFIG, f"no cluster: {_line(error)}; set KUBECONFIG, or run in a pod"
            ) from None
        where, own = "this pod's cluster", _namespace_of_this_pod()
    found = namespace or own
    if not found:
        raise Fault(Exit.CONFIG, f"{where} names no namespace; say which: --namespace NAME")
    configuration.retries = False  # they are ours, bounded by the time
    return Cluster(client.ApiClient(configuration), found, f"{where}, namespace {found}", timeout)


def _namespace_of_this_pod() -> str | None:
    try:
        with open(f"{_SERVICE_ACCOUNT}/namespace", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return None


_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def call(
    cluster: Cluster,
    method: str,
    path: str,
    *,
    query: Mapping[str, object] | None = None,
    body: Object | None = None,
    content_type: str = "application/json",
) -> Object:
    """Return what the API answers to a request that may safely be made twice.

    Raises Missing on 404, Fault(64) when the request is refused, and Fault(69) when there is no
    sensible answer in time.
    """
    deadline = time.monotonic() + cluster.timeout
    pause = 0.5
    while True:
        left = deadline - time.monotonic()
        try:
            answer = _once(cluster, method, path, query, body, content_type, left)
        except ApiException as error:
            problem = _words(error, method, path)
            if error.status not in _TRANSIENT:
                raise problem from None
            pause = max(pause, _retry_after(error))
        except urllib3.exceptions.HTTPError as error:
            problem = Fault(Exit.PEER, f"{cluster.where}: no answer to {method} {path}: {error}")
        else:
            if isinstance(answer, dict):
                return answer
            text = repr(answer)[:80]
            raise Fault(
                Exit.PEER, f"{cluster.where}: {method} {path} was answered with no JSON: {text}"
            )
        if time.monotonic() + pause >= deadline:
            raise problem
        time.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311  # so that clients spread out
        pause = min(2 * pause, 8)


def _once(
    cluster: Cluster,
    method: str,
    path: str,
    query: Mapping[str, object] | None,
    body: Object | None,
    content_type: str,
    left: float,
) -> object:
    return cluster.client.call_api(
        path,
        method,
        query_params=list((query or {}).items()),
        header_params={"Accept": "application/json", "Content-Type": content_type},
        body=body,
        auth_settings=["BearerToken"],
        response_type="object",
        _return_http_data_only=True,
        _request_timeout=max(0.1, left),
    )


class Missing(Fault):
    """What was asked for is not there."""


def _words(error: ApiException, method: str, path: str) -> Fault:
    reason = _message(error)
    line = f"{method} {path}: {error.status}: {reason}"
    if error.status == 404:
        return Missing(Exit.CONFIG, line)
    if error.status in _TRANSIENT:
        return Fault(Exit.PEER, f"the cluster cannot answer now: {line}")
    if error.status in (401, 403):
        return Fault(Exit.CONFIG, f"not allowed: {line}; `render.py --rbac` has the Role it takes")
    return Fault(Exit.CONFIG, f"the cluster refuses it: {line}")


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)


def _retry_after(error: ApiException) -> float:
    text = (error.headers or {}).get("Retry-After", "")
    return float(text) if str(text).isdecimal() else 0.0


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


@cache
def resource(cluster: Cluster, api_version: str, kind: str) -> Resource:
    """Return how a kind is addressed.

    Raises Fault(64) when the cluster does not serve it, saying what it serves or what to install.
    """
    group, _, version = api_version.rpartition("/")
    path = f"/apis/{api_version}" if group else f"/api/{version}"
    try:
        served = call(cluster, "GET", path)
    except Missing:
        raise Fault(Exit.CONFIG, _not_served(cluster, group, api_version, kind)) from None
    for entry in served["resources"]:
        if entry["kind"] == kind and "/" not in entry["name"]:
            return Resource(path, entry["name"], entry["namespaced"])
    raise Fault(Exit.CONFIG, f"{cluster.where}: {api_version} has no kind {kind}")


def _not_served(cluster: Cluster, group: str, api_version: str, kind: str) -> str:
    try:
        versions = [v["version"] for v in call(cluster, "GET", f"/apis/{group}")["versions"]]
    except Missing:
        install = _INSTALL.get(group, f"what serves {group}")
        return f"{cluster.where}: no {kind} ({api_version}) here; install {install}"
    return (
        f"{cluster.where}: {kind} is served as {', '.join(versions)}, the manifest says "
        f"{api_version}; install a version that serves it: {_INSTALL.get(group, group)}"
    )


def path_of(cluster: Cluster, api_version: str, kind: str, name: str = "") -> str:
    """Return the path of an object, or of all of its kind in the namespace."""
    found = resource(cluster, api_version, kind)
    namespace = f"/namespaces/{cluster.namespace}" if found.namespaced else ""
    return f"{found.path}{namespace}/{found.plural}" + (f"/{name}" if name else "")


def get(cluster: Cluster, api_version: str, kind: str, name: str) -> Object | None:
    """Return an object, or None when it is not there."""
    try:
        return call(cluster, "GET", path_of(cluster, api_version, kind, name))
    except Missing:
        return None


def find(cluster: Cluster, api_version: str, kind: str, labels: Mapping[str, str]) -> list[Object]:
    """Return the namespace's objects of a kind that bear `labels`."""
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    path = path_of(cluster, api_version, kind)
    items: list[Object] = []
    query: dict[str, object] = {"labelSelector": selector, "limit": 500}
    while True:
        page = call(cluster, "GET", path, query=query)
        items += page["items"]
        following = page.get("metadata", {}).get("continue")
        if not following:
            return items
        query["continue"] = following


def apply(
    cluster: Cluster, manifest: Object, *, dry_run: bool = False, force: bool = False
) -> Object:
    """Apply a manifest on the server's side and return the object it became."""
    api_version, kind = manifest["apiVersion"], manifest["kind"]
    path = path_of(cluster, api_version, kind, manifest["metadata"]["name"])
    query: dict[str, object] = {"fieldManager": FIELD_MANAGER, "force": str(force).lower()}
    query["fieldValidation"] = "Strict"
    if dry_run:
        query["dryRun"] = "All"
    return call(cluster, "PATCH", path, query=query, body=manifest, content_type=_APPLY)


def patch(cluster: Cluster, found: Object, change: Object) -> Object:
    """Merge `change` into an object."""
    path = path_of(cluster, found["apiVersion"], found["kind"], found["metadata"]["name"])
    query = {"fieldManager": FIELD_MANAGER}
    return call(cluster, "PATCH", path, query=query, body=change, content_type=_MERGE)


def delete(cluster: Cluster, found: Object) -> None:
    """Delete an object and what it owns; one that is gone already is as good."""
    path = path_of(cluster, found["apiVersion"], found["kind"], found["metadata"]["name"])
    body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    try:
        call(cluster, "DELETE", path, body=body)
    except Missing:
        return
