"""An object and its changes, from a watch of the API, without polling.

for found in changes(cluster, "batch/v1", "Job", "digits", deadline=time.monotonic() + 60): ...
"""

import json
import time
from collections.abc import Iterator

import urllib3

from k8s.base.errors import in_one_line
from k8s.cluster.client import api, objects
from k8s.cluster.client.api import Cluster, Gone, Object
from k8s.cluster.client.shape import checked
from trainer.config.exits import Exit, Fault

_LONGEST = 240  # seconds that one watch is asked to last; proxies cut longer ones
_LEAST = 1.0  # least time between the starts of two watches
_MARGIN = 5.0  # seconds that the server may be late with the end of a watch


def changes(
    cluster: Cluster, api_version: str, kind: str, name: str, *, deadline: float
) -> Iterator[Object | None]:
    """Yield an object as it is now and after every change, or None while it does not exist.

    Ends at `deadline`, a time of time.monotonic(), after one look at least. A broken watch continues
    from its last version; if the server has dropped that version (410), it starts again. Raises what
    `api.call` raises.
    """
    path = objects.path_of(cluster, api_version, kind)
    query: dict[str, object] = {"fieldSelector": f"metadata.name={name}"}
    while True:
        page = api.call(cluster, "GET", path, query=query)
        items = objects.list_in(cluster, path, page, "items")
        # The items of a list have no apiVersion and kind.
        yield {"apiVersion": api_version, "kind": kind, **items[0]} if items else None
        version = str((page.get("metadata") or {}).get("resourceVersion", ""))
        try:
            yield from _watch(cluster, path, query, version, deadline=deadline)
        except Gone:
            time.sleep(max(0.0, min(_LEAST, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            return


def _watch(
    cluster: Cluster, path: str, query: Object, version: str, *, deadline: float
) -> Iterator[Object | None]:
    """Yield the object after each change since `version`. Raises Gone when the server dropped it."""
    where = f"{cluster.where}: watch of {path}"
    while (left := deadline - time.monotonic()) > 0:
        opened = time.monotonic()
        seconds = max(1, round(min(_LONGEST, left)))
        options = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": seconds,
        }
        for event in _events(cluster, path, options, silence=min(seconds + _MARGIN, left)):
            changed = event.get("type") in ("ADDED", "MODIFIED")
            found = checked(event.get("object") or {}, where=where, one=changed)
            if event.get("type") == "ERROR":
                text = f"{where}: {found.get('code')}: {found.get('message')}"
                # Gone for every error: if the error persists, the next list request fails with it.
                raise Gone(Exit.PEER, in_one_line(text))
            version = str(found.get("metadata", {}).get("resourceVersion", version))
            if changed:
                yield found
            elif event.get("type") == "DELETED":
                yield None
        ended = time.monotonic()
        time.sleep(max(0.0, min(opened + _LEAST, deadline) - ended))


def _events(cluster: Cluster, path: str, query: Object, *, silence: float) -> Iterator[Object]:
    """Yield a watch's events until it ends or its connection breaks."""
    response = api.stream(cluster, path, query, silence=silence)
    rest = b""
    try:
        while piece := response.read1(65536):
            *lines, rest = (rest + piece).split(b"\n")
            yield from (_parsed(cluster, path, line) for line in lines if line.strip())
    except (OSError, urllib3.exceptions.HTTPError):
        return
    finally:
        response.close()


def _parsed(cluster: Cluster, path: str, line: bytes) -> Object:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise Fault(Exit.PEER, f"{cluster.where}: watch of {path}: not JSON: {line[:80]!r}")
    return event
