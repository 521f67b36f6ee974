"""The stand-in cluster's API over HTTP: what the verbs and the suite ask of it, and no more.

Discovery, get, list, watch with what came before, server-side apply (as a merge: fields that an earlier
apply set and this one leaves out stay), JSON and merge patches, delete, and logs. There are no users and
no pages of a list; every kind of tests/apiobjects.py is served.
"""

import copy
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.apiobjects import EVERYWHERE, GROUPS, discovered, merge, replace, selected
from tests.body import read
from tests.standin.admission import check
from tests.standin.store import Change, Object, Refusal, Store, path_of

KINDS = {
    (version, plural): kind for version, kinds in GROUPS.items() for kind, plural in kinds.items()
}
VERSION: Object = {"major": "1", "minor": "34", "gitVersion": "v1.34.0-standin"}
Logs = Callable[[Object, dict[str, str]], Iterator[bytes]]


class Server(ThreadingHTTPServer):
    """Serves a store; `logs` yields the parts of a pod's log. Raises nothing: a Refusal is an answer."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, store: Store, logs: Logs) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store
        self.logs = logs

    def answer(self, method: str, target: str, body: Any) -> Object | Iterator[bytes]:
        """Return what is asked for: an object, or parts of a text as they come."""
        parts = urlsplit(target)
        query = {k: v[0] for k, v in parse_qs(parts.query).items()}
        path = parts.path
        match method:
            case "GET":
                if path == "/version":
                    return VERSION
                return discovered(path, GROUPS) or self._got(path, query)
            case "PATCH":
                return self._patched(path, body, query)
            case "DELETE":
                held = self._held(path)
                self.store.delete(held, grace=(body or {}).get("gracePeriodSeconds"))
                return held
        raise Refusal(405, f"{method} {path}: not one of the verbs'")

    def _got(self, path: str, query: dict[str, str]) -> Object | Iterator[bytes]:
        if path.endswith("/log"):
            return self.logs(self._held(path.removesuffix("/log")), query)
        if _kind(path) is None:
            return self._held(path)
        return self._watch(path, query) if query.get("watch") == "true" else self._list(path, query)

    def _held(self, path: str) -> Object:
        with self.store.lock:
            if path not in self.store.objects:
                *_, plural, name = path.split("/")
                raise Refusal(404, f'{plural} "{name}" not found')
            return self.store.objects[path]

    def _list(self, path: str, query: dict[str, str]) -> Object:
        with self.store.lock:
            here = [o for p, o in self.store.objects.items() if p.rpartition("/")[0] == path]
            # the items of a list do not say what they are
            items = [
                {k: v for k, v in one.items() if k not in ("apiVersion", "kind")}
                for one in here
                if selected(one, query)
            ]
            return {"items": items, "metadata": {"resourceVersion": str(self.store.version)}}

    def _watch(self, path: str, query: dict[str, str]) -> Iterator[bytes]:
        """Yield a change a line from `resourceVersion` on, for `timeoutSeconds`."""
        end = datetime.now(UTC).timestamp() + float(query["timeoutSeconds"])
        version, seen = int(query["resourceVersion"]), 0
        while (left := end - datetime.now(UTC).timestamp()) > 0:
            with self.store.lock:
                new: list[Change] = self.store.history[seen:]
                seen += len(new)
                if not new:
                    self.store.lock.wait(min(left, 1.0))
            for at, place, change, one in new:
                if at > version and place == path and selected(one, query):
                    yield json.dumps({"type": change, "object": one}).encode() + b"\n"

    def _patched(self, path: str, body: Any, query: dict[str, str]) -> Object:
        with self.store.lock:
            held = self.store.objects.get(path)
            if isinstance(body, list):
                one = copy.deepcopy(self._held(path))
                for operation in body:
                    replace(one, operation["path"], operation["value"])
            else:
                one = copy.deepcopy(merge(held or {}, body))
            if held is None:
                one.setdefault("metadata", {}).update(_address(path))
                if "apiVersion" not in one:
                    self._held(path)  # a patch of what is not there
            check(self.store, {k: v for k, v in one.items() if k != "status"})
            if query.get("dryRun") == "All":
                return one
            if path_of(one) != path:
                raise Refusal(400, f"{path_of(one)} is not {path}")
            return self.store.create(one) if held is None else self.store.update(one)


def _kind(path: str) -> str | None:
    """Return the kind whose objects are all at a path."""
    *version, plural = path.removeprefix("/apis/").removeprefix("/api/").split("/")
    text = "/".join(version).split("/namespaces/")[0]
    return KINDS.get((text, plural))


def _address(path: str) -> dict[str, str]:
    """Return the name and the namespace that a path says."""
    before, _, name = path.rpartition("/")
    kind = _kind(before)
    if kind is None:
        raise Refusal(404, "the server could not find the requested resource")
    if kind in EVERYWHERE:
        return {"name": name}
    return {"name": name, "namespace": before.split("/namespaces/")[1].split("/")[0]}


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are written apart: 40 ms for every answer

    def handle_any(self) -> None:
        status = 200
        found: Object | Iterator[bytes]
        try:
            found = self.server.answer(self.command, self.path, read(self.headers, self.rfile))
        except Refusal as refusal:
            status = refusal.status
            found = {"kind": "Status", "code": status, "message": refusal.message}
        self.send_response(status)
        if isinstance(found, dict):
            data = json.dumps(found).encode()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for part in found:
                self.wfile.write(part)
                self.wfile.flush()
        except OSError:
            pass  # whoever asked has enough

    do_GET = do_PATCH = do_DELETE = do_POST = handle_any  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass
