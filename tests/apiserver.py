"""The part of a cluster's API that the verbs use, over real HTTP, for machines without a cluster.

It stores what is applied and serves it again; nothing acts on it, so a test sets the status itself.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]

GROUPS = {
    "v1": {"Pod": "pods", "Service": "services", "ConfigMap": "configmaps", "Event": "events"},
    "batch/v1": {"Job": "jobs"},
    "jobset.x-k8s.io/v1alpha2": {"JobSet": "jobsets"},
    "kubeflow.org/v1": {"PyTorchJob": "pytorchjobs"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies"},
    "batch.volcano.sh/v1alpha1": {"Job": "jobs"},
}


class Server:
    """`objects` by path; `logs` by pod; `answer`, when set, is asked first: (status, headers, body)."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.logs: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.answer: Callable[[str, str], tuple[int, dict[str, str], str] | None] = lambda _, __: (
            None
        )
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.http.daemon_threads = True

    def put(self, api_version: str, kind: str, found: Object) -> None:
        prefix = "/apis" if "/" in api_version else "/api"
        plural = GROUPS[api_version][kind]
        path = f"{prefix}/{api_version}/namespaces/lab/{plural}/{found['metadata']['name']}"
        self.objects[path] = {"apiVersion": api_version, "kind": kind} | found

    def respond(self, method: str, target: str, body: Object | None) -> tuple[int, Object | str]:
        parts = urlsplit(target)
        path, query = parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()}
        if path.endswith("/log"):
            name = path.split("/")[-2]
            return (200, self.logs[name]) if name in self.logs else (400, {"message": "no log yet"})
        if method == "GET" and (listed := self._discover(path) or self._list(path, query)):
            return 200, listed
        if method == "PATCH" and query.get("dryRun") == "All":
            return 200, body or {}
        if method == "PATCH":
            self.objects[path] = _merge(self.objects.get(path, {}), body or {})
        if path not in self.objects:
            return 404, {"message": f"{path} not found"}
        return 200, self.objects.pop(path) if method == "DELETE" else self.objects[path]

    def _discover(self, path: str) -> Object | None:
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version in GROUPS:
            kinds = GROUPS[version].items()
            return {"resources": [{"kind": k, "name": n, "namespaced": True} for k, n in kinds]}
        mine = [group for group in GROUPS if group.startswith(f"{version}/")]
        return {"versions": [{"version": group.split("/")[1]} for group in mine]} if mine else None

    def _list(self, path: str, query: dict[str, str]) -> Object | None:
        plurals = {plural for kinds in GROUPS.values() for plural in kinds.values()}
        if path.rsplit("/", 1)[1] not in plurals:
            return None
        return {"items": list(self._select(path, query)), "metadata": {}}

    def _select(self, path: str, query: dict[str, str]) -> Iterator[Object]:
        wanted = [pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair]
        for place, found in self.objects.items():
            labels = found["metadata"].get("labels", {})
            if place.rsplit("/", 1)[0] == path and all(labels.get(k) == v for k, v in wanted):
                yield found


def _merge(one: Object, other: Object) -> Object:
    merged = dict(one)
    for key, value in other.items():
        merged[key] = _merge(one.get(key, {}), value) if isinstance(value, dict) else value
    return merged


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            server.requests.append((self.command, self.path))
            headers: dict[str, str] = {}
            if (told := server.answer(self.command, self.path)) is not None:
                status, headers, text = told
            else:
                status, found = server.respond(self.command, self.path, body)
                text = found if isinstance(found, str) else json.dumps(found)
            data = text.encode()
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PATCH = do_DELETE = do_POST = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Server, Path]]:
    """Serve, and yield the server with a kubeconfig that leads to it."""
    server = Server()
    threading.Thread(target=server.http.serve_forever, daemon=True).start()
    try:
        yield server, kubeconfig(folder, f"http://127.0.0.1:{server.http.server_port}")
    finally:
        server.http.shutdown()
        server.http.server_close()


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
