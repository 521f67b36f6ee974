"""Answers the requests of a cluster's API: discovery, get, list, watch, apply, patches, delete, logs.

Server-side apply is a merge: fields of an earlier apply that are left out in this one remain. A list is
one page.

    found = respond(server, "GET", "/api/v1/namespaces/lab/pods?labelSelector=a=b", None)
"""

import copy
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.standin.objects import (
    CLUSTER_WIDE,
    PLURALS,
    Object,
    matches,
    merge,
    namespace_in,
    path_of,
    replace,
)
from tests.standin.server import Query, Refusal, Server

_TOO_OLD = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}


def respond(server: Server, method: str, target: str, body: Any) -> Object | Iterator[bytes]:
    """Return an object, or the parts of a text as they become available. Raises Refusal."""
    parts = urlsplit(target)
    path, query = parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()}
    match method:
        case "GET":
            return _get(server, path, query)
        case "PATCH":
            return _patch(server, path, body, dry_run=query.get("dryRun") == "All")
        case "DELETE":
            one = _find(server, path)
            server.delete(one, grace=(body or {}).get("gracePeriodSeconds"))
            return one
    raise Refusal(405, f"{method} {path} is not supported")


def _get(server: Server, path: str, query: Query) -> Object | Iterator[bytes]:
    if path == "/version":
        return {"major": "1", "minor": "34+", "gitVersion": server.release}
    if path.endswith("/log"):
        return server.log(path.removesuffix("/log"), query)
    if served := _discover(server, path):
        return served
    if path.rsplit("/", 1)[1] not in PLURALS:
        return _find(server, path)
    if query.get("watch") == "true":
        return _watch(server, path, query)
    with server.changed:
        here = [one for place, one in server.objects.items() if place.rpartition("/")[0] == path]
        version = str(server.version)
    # The items of a list have neither apiVersion nor kind.
    items = [
        {key: value for key, value in one.items() if key not in ("apiVersion", "kind")}
        for one in here
        if matches(one, query)
    ]
    return {"items": items, "metadata": {"resourceVersion": version}}


def _discover(server: Server, path: str) -> Object | None:
    if path == "/api":
        return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(server)}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version in server.groups:
        kinds = server.groups[version].items()
        return {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": [
                {
                    "kind": kind,
                    "name": name,
                    "namespaced": kind not in CLUSTER_WIDE,
                    "verbs": ["get", "list", "watch"],
                }
                for kind, name in kinds
            ],
        }
    served = [group for group in server.groups if group.startswith(f"{version}/")]
    return {"versions": [{"version": one.split("/")[1]} for one in served]} if served else None


def _groups(server: Server) -> list[Object]:
    found: dict[str, list[Object]] = {}
    for one in server.groups:
        group, _, version = one.rpartition("/")
        if group:
            found.setdefault(group, []).append({"groupVersion": one, "version": version})
    return [
        {"name": name, "versions": versions, "preferredVersion": versions[0]}
        for name, versions in found.items()
    ]


def _find(server: Server, path: str) -> Object:
    if path not in server.objects:
        raise Refusal(404, f"{path} not found")
    return server.objects[path]


def _patch(server: Server, path: str, body: Any, *, dry_run: bool) -> Object:
    with server.changed:
        before = server.objects.get(path)
        if isinstance(body, list):
            after = copy.deepcopy(_find(server, path))
            for operation in body:
                replace(after, operation["path"], operation["value"])
        else:
            after = copy.deepcopy(merge(before or {}, body))
        if "kind" not in after:
            _find(server, path)  # a merge patch creates nothing
        if namespace := namespace_in(path):
            after["metadata"].setdefault("namespace", namespace)
        if path_of(after) != path:
            raise Refusal(400, f"{path_of(after)} is not {path}")
        server.admit({key: value for key, value in after.items() if key != "status"})
        if dry_run:
            return after
        return server.create(after) if before is None else server.change(before, **after)


def _watch(server: Server, path: str, query: Query) -> Iterator[bytes]:
    """Yield events, one per line, from `resourceVersion` on, for `timeoutSeconds`."""
    end = time.monotonic() + float(query["timeoutSeconds"])
    after, hung_up = int(query["resourceVersion"]), server.hung_up
    with server.changed:
        server.watches.append(path)
    try:
        while (left := end - time.monotonic()) > 0:
            with server.changed:
                ended = server.hung_up != hung_up
                new = [
                    event
                    for version, place, event in server.history
                    if version > after
                    and place.rpartition("/")[0] == path
                    and matches(event["object"], query)
                ]
                if after < server.oldest:
                    new = [] if ended else [_TOO_OLD]
                after = server.version
                if not new and ended:
                    return
                if not new:
                    server.changed.wait(min(left, 1.0))
            for event in new:
                yield json.dumps(event).encode() + b"\n"
    finally:
        with server.changed:
            server.watches.remove(path)
