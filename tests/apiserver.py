"""The part of a cluster's API that the verbs use, over real HTTP, for machines without a cluster.

It stores what is applied and serves it again, lists and watches; nothing acts on it, so a test sets the
status itself. `requests` is what was asked for, for who compares it with a Role.
"""

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.apiobjects import (
    EVERYWHERE,
    GROUPS,
    PLURALS,
    Object,
    discovered,
    merge,
    replace,
    selected,
)
from tests.body import read
from tests.portforward import forward

Answer = tuple[int, dict[str, str], str]


class Server:
    """`objects` by path; `logs` by pod; `answer`, when set, is asked first: (status, headers, body).

    `groups` is what it serves. `forget()` makes it answer a watch from an old version with 410,
    `hang_up()` ends every watch.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.logs: dict[str, str] = {}
        self.groups = dict(GROUPS)
        self.requests: list[tuple[str, str]] = []
        self.answer: Callable[[str, str], Answer | None] = lambda _, __: None
        self.version = 1
        self.oldest = 0
        self.lock = threading.RLock()  # a change and who is told of it are one
        self.changes: list[tuple[int, str, Object]] = []  # version, path and event
        self.watches: list[tuple[str, dict[str, str], queue.SimpleQueue[Object | None]]] = []
        self.http = _Http(("127.0.0.1", 0), _Handler)
        self.http.api = self

    def path(self, api_version: str, kind: str, name: str = "") -> str:
        prefix = "/apis" if "/" in api_version else "/api"
        place = "" if kind in EVERYWHERE else "/namespaces/lab"
        return f"{prefix}/{api_version}{place}/{GROUPS[api_version][kind]}" + (
            f"/{name}" if name else ""
        )

    def put(self, api_version: str, kind: str, found: Object) -> None:
        path = self.path(api_version, kind, found["metadata"]["name"])
        self.store(path, {"apiVersion": api_version, "kind": kind} | found)

    def store(self, path: str, found: Object) -> None:
        with self.lock:
            self.version += 1
            change = "MODIFIED" if path in self.objects else "ADDED"
            metadata = {"uid": f"uid-{path.rsplit('/', 1)[1]}"} | found["metadata"]
            found = found | {"metadata": metadata | {"resourceVersion": str(self.version)}}
            self.objects[path] = found
            self._tell(path, change, found)

    def remove(self, path: str) -> Object:
        with self.lock:
            self.version += 1
            found = self.objects.pop(path)
            found = found | {"metadata": found["metadata"] | {"resourceVersion": str(self.version)}}
            self._tell(path, "DELETED", found)
            return found

    def _tell(self, path: str, change: str, found: Object) -> None:
        event = {"type": change, "object": found}
        self.changes.append((self.version, path, event))
        for place, query, events in self.watches:
            if place == path.rsplit("/", 1)[0] and selected(found, query):
                events.put(event)

    def watch(self, place: str, query: dict[str, str]) -> queue.SimpleQueue[Object | None]:
        """Return what comes after a version: what has come since, and from now on."""
        events: queue.SimpleQueue[Object | None] = queue.SimpleQueue()
        after = int(query["resourceVersion"])
        with self.lock:
            if after < self.oldest:
                events.put({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
            for version, path, event in self.changes:
                here = place == path.rsplit("/", 1)[0] and selected(event["object"], query)
                if version > after and here:
                    events.put(event)
            self.watches.append((place, query, events))
        return events

    def forget(self) -> None:
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.changes.clear()
            for _, _, events in self.watches:
                events.put({"type": "ERROR", "object": {"code": 410, "message": "too old"}})

    def hang_up(self) -> None:
        for _, _, events in self.watches:
            events.put(None)

    def respond(self, method: str, target: str, body: Any) -> tuple[int, Object | str]:
        parts = urlsplit(target)
        path, query = parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()}
        if path == "/version":
            return 200, {"major": "1", "minor": "34+", "gitVersion": "v1.34.2"}
        if path.endswith("/log"):
            return self._log(path.split("/")[-2], query)
        if method == "GET" and (listed := discovered(path, self.groups) or self._list(path, query)):
            return 200, listed
        if method == "PATCH" and query.get("dryRun") == "All":
            return 200, body or {}
        if method == "PATCH" and (path in self.objects or not isinstance(body, list)):
            self.store(path, self._patched(path, body))
        if path not in self.objects:
            return 404, {"message": f"{path} not found"}
        return 200, self.remove(path) if method == "DELETE" else self.objects[path]

    def _patched(self, path: str, body: Any) -> Object:
        if not isinstance(body, list):
            return merge(self.objects.get(path, {}), body)
        changed: Object = json.loads(json.dumps(self.objects[path]))
        for operation in body:
            replace(changed, operation["path"], operation["value"])
        return changed

    def _log(self, name: str, query: dict[str, str]) -> tuple[int, Object | str]:
        key = f"{name}.previous" if query.get("previous") else name
        if key not in self.logs:
            return 400, {"message": "no log yet"}
        lines = self.logs[key].splitlines(keepends=True)
        if query.get("timestamps"):
            stamped = [f"2026-01-01T00:00:{n:02}.000000000Z {line}" for n, line in enumerate(lines)]
            lines = [line for line in stamped if line[:30] >= query.get("sinceTime", "")]
        return 200, "".join(lines)

    def _list(self, path: str, query: dict[str, str]) -> Object | None:
        if "/" not in path or path.rsplit("/", 1)[1] not in PLURALS:
            return None
        with self.lock:
            here = [
                found for place, found in self.objects.items() if place.rsplit("/", 1)[0] == path
            ]
            version = str(self.version)
        # the items of a list do not say what they are
        items = [
            {k: v for k, v in found.items() if k not in ("apiVersion", "kind")}
            for found in here
            if selected(found, query)
        ]
        return {"items": items, "metadata": {"resourceVersion": version}}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    api: Server


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are written apart: 40 ms for every answer

    def handle_any(self) -> None:
        unreadable: Answer | None = None
        body = None
        try:
            body = read(self.headers, self.rfile)
        except yaml.YAMLError as error:
            unreadable = 400, {}, json.dumps({"message": str(error)})
        self.server.api.requests.append((self.command, self.path))
        headers: dict[str, str] = {}
        if told := unreadable or self.server.api.answer(self.command, self.path):
            status, headers, text = told
        elif self.headers.get("Upgrade") == "websocket":
            self.close_connection = True
            forward(self)
            return
        elif "watch=true" in self.path:
            self.watch()
            return
        else:
            status, found = self.server.api.respond(self.command, self.path, body)
            text = found if isinstance(found, str) else json.dumps(found)
        data = text.encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def watch(self) -> None:
        parts = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(parts.query).items()}
        events = self.server.api.watch(parts.path, query)
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            while (event := events.get(timeout=float(query["timeoutSeconds"]))) is not None:
                self.wfile.write(json.dumps(event).encode() + b"\n")
        except (queue.Empty, OSError):
            pass
        self.server.api.watches.remove((parts.path, query, events))

    do_GET = do_PATCH = do_DELETE = do_POST = handle_any  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Server, Path]]:
    """Serve, and yield the server with a kubeconfig that leads to it."""
    server = Server()
    threading.Thread(target=server.http.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server, kubeconfig(folder, f"http://127.0.0.1:{server.http.server_port}")
    finally:
        server.hang_up()
        server.http.shutdown()
        server.http.server_close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def kubeconfig(folder: Path, address: str, *, namespace: str | None = "lab") -> Path:
    """Write a kubeconfig for `address`."""
    place = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    file = folder / "kubeconfig"
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": place}],
                "clusters": [{"name": "c", "cluster": {"server": address}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        ),
        encoding="utf-8",
    )
    return file
