"""Objects of a cluster by kind and name: find a kind's API path; get, list, apply, patch, delete.

found = get(cluster, "batch/v1", "Job", "digits")
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import quote

from k8s import launchers
from k8s.base.yaml_text import as_json
from k8s.cluster.client.api import FIELD_MANAGER, Cluster, Gone, Missing, Object, call
from k8s.cluster.client.shape import checked
from trainer.config.exits import Exit, Fault

_TURN = 0.5  # seconds between two checks

# What to install for an API group that is not served. JobKind has the groups of each launcher.
_INSTALL = {
    "metrics.k8s.io": "metrics-server, https://github.com/kubernetes-sigs/metrics-server",
    "kueue.x-k8s.io": "Kueue, https://kueue.sigs.k8s.io/docs/installation/",
    "workload.codeflare.dev": "AppWrapper, https://project-codeflare.github.io/appwrapper/",
    "monitoring.coreos.com": "the Prometheus operator, https://prometheus-operator.dev",
}


@dataclass(frozen=True)
class Resource:
    """A kind in the API: its path, its plural name, and whether its objects have a namespace."""

    path: str
    plural: str
    namespaced: bool


class NotServed(Fault):
    """The cluster does not serve a kind."""


@cache
def resource(cluster: Cluster, api_version: str, kind: str) -> Resource:
    """Return a kind's place in the API.

    Raises NotServed (64) when the cluster does not serve it; the text names what to install.
    """
    group, _, version = api_version.rpartition("/")
    path = f"/apis/{api_version}" if group else f"/api/{version}"
    try:
        served = call(cluster, "GET", path)
    except Missing:
        raise NotServed(Exit.CONFIG, _not_served(cluster, group, api_version, kind)) from None
    for entry in list_in(cluster, path, served, "resources"):
        if entry["kind"] == kind and "/" not in entry["name"]:
            return Resource(path, entry["name"], entry["namespaced"])
    raise NotServed(Exit.CONFIG, f"{cluster.where}: {api_version} has no kind {kind}")


def list_in(cluster: Cluster, path: str, answer: Object, key: str) -> list[Object]:
    """Return the list `key` of an answer. Raises Fault(69) if it has none: that is not an API server."""
    found = checked(answer, where=f"{cluster.where}: GET {path}", one=False).get(key)
    if not isinstance(found, list):
        raise Fault(
            Exit.PEER, f"{cluster.where}: GET {path} was answered without {key}: {str(answer)[:80]}"
        )
    return found


def _not_served(cluster: Cluster, group: str, api_version: str, kind: str) -> str:
    try:
        path = f"/apis/{group}"
        versions = [
            v["version"] for v in list_in(cluster, path, call(cluster, "GET", path), "versions")
        ]
    except Missing:
        what = _to_install(group) or f"what serves {group}"
        return f"{cluster.where}: no {kind} ({api_version}) here; install {what}"
    return (
        f"{cluster.where}: {kind} is served as {', '.join(versions)}, but the manifest says "
        f"{api_version}; install a version that serves it: {_to_install(group) or group}"
    )


def _to_install(group: str) -> str | None:
    of_launchers = (kind.install.get(group) for kind in launchers.job_kinds())
    return _INSTALL.get(group) or next(filter(None, of_launchers), None)


def path_of(cluster: Cluster, api_version: str, kind: str, name: str = "") -> str:
    """Return the path of an object or, without a name, of all objects of the kind in the namespace."""
    found = resource(cluster, api_version, kind)
    namespace = f"/namespaces/{quote(cluster.namespace, '')}" if found.namespaced else ""
    return f"{found.path}{namespace}/{found.plural}" + (f"/{quote(name, '')}" if name else "")


def get(cluster: Cluster, api_version: str, kind: str, name: str) -> Object | None:
    """Return an object, or None when it is not there."""
    if not name:
        return None  # the path would be that of the list
    path = path_of(cluster, api_version, kind, name)
    try:
        found = call(cluster, "GET", path)
    except Missing:
        return None
    return checked(found, where=f"{cluster.where}: GET {path}", one=True)


def find(
    cluster: Cluster,
    api_version: str,
    kind: str,
    labels: Mapping[str, str] | None = None,
    *,
    fields: str = "",
) -> list[Object]:
    """Return the namespace's objects of a kind that match `labels` and `fields`."""
    query: dict[str, object] = {}
    if labels:
        query["labelSelector"] = ",".join(f"{name}={value}" for name, value in labels.items())
    if fields:
        query["fieldSelector"] = fields
    found = listed(cluster, path_of(cluster, api_version, kind), query)
    # The items of a list come without these two.
    return [{"apiVersion": api_version, "kind": kind, **one} for one in found]


def listed(cluster: Cluster, path: str, query: Mapping[str, object] | None = None) -> list[Object]:
    """Return all items at a path, page by page; start again if the server has dropped the pages."""
    first = {"limit": 500, **(query or {})}
    items: list[Object] = []
    token = ""
    while True:
        try:
            page = call(cluster, "GET", path, query=first | ({"continue": token} if token else {}))
        except Gone:
            if not token:
                raise
            items, token = [], ""
            continue
        items += list_in(cluster, path, page, "items")
        token = (page.get("metadata") or {}).get("continue") or ""
        if not token:
            return items


def apply(
    cluster: Cluster, manifest: Object, *, dry_run: bool = False, force: bool = False
) -> Object:
    """Apply a manifest with a server-side apply and return the resulting object."""
    api_version, kind = manifest["apiVersion"], manifest["kind"]
    path = path_of(cluster, api_version, kind, manifest["metadata"]["name"])
    query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower()}
    query |= {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
    form = "application/apply-patch+yaml"
    return call(cluster, "PATCH", path, query=query, body=as_json(manifest), content_type=form)


def patch(cluster: Cluster, found: Object, change: Object | list[Object]) -> Object:
    """Change an object: merge a mapping into it, or apply a list of JSON Patch operations."""
    path = path_of(cluster, found["apiVersion"], found["kind"], found["metadata"]["name"])
    form = f"application/{'json' if isinstance(change, list) else 'merge'}-patch+json"
    query = {"fieldManager": FIELD_MANAGER}
    return call(cluster, "PATCH", path, query=query, body=change, content_type=form)


def delete(cluster: Cluster, found: Object) -> None:
    """Delete an object and what it owns; no error when it is not there."""
    path = path_of(cluster, found["apiVersion"], found["kind"], found["metadata"]["name"])
    body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    try:
        call(cluster, "DELETE", path, body=body)
    except Missing:
        return


def wait_until_gone(
    cluster: Cluster, is_there: Callable[[], object], *, what: str, seconds: float
) -> None:
    """Wait until a deleted object is gone. Raises Fault(69) after `seconds`."""
    end = time.monotonic() + seconds
    while is_there():
        if time.monotonic() > end:
            raise Fault(
                Exit.PEER, f"{cluster.where}: {what} was deleted but is still there; try again"
            )
        time.sleep(_TURN)
