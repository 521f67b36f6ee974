"""Serves a cluster's API over HTTP, and writes a kubeconfig for it.

with serving(Server(), folder) as kubeconfig: ...
"""

import base64
import contextlib
import hashlib
import json
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.standin.api import respond
from tests.standin.server import Refusal, Server


@contextmanager
def serving(
    server: Server,
    folder: Path,
    *,
    namespace: str | None = "lab",
    tls: ssl.SSLContext | None = None,
) -> Iterator[Path]:
    """Serve until the block ends; yield the kubeconfig. `server.port` is set."""
    http = _Http(("127.0.0.1", 0), _Handler)
    if tls:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    scheme = "https" if tls else "http"
    http.api, server.port = server, http.server_port
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield kubeconfig(folder, f"{scheme}://127.0.0.1:{server.port}", namespace=namespace)
    finally:
        server.hang_up()
        http.shutdown()
        http.server_close()


_TOKEN = "a-token"  # noqa: S105


def kubeconfig(folder: Path, address: str, *, namespace: str | None = "lab") -> Path:
    """Write a kubeconfig for `address`."""
    place = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": place}],
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": _TOKEN}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    api: Server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error, unless the client has closed the connection."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are written separately: 40 ms for every answer

    def handle_any(self) -> None:
        api = self.server.api
        try:
            body = self._body()
            api.requests.append((self.command, self.path))
            if api.asks_for_token and self.headers["Authorization"] != f"Bearer {_TOKEN}":
                self._send(401, {}, json.dumps({"message": "Unauthorized"}))
            elif planted := api.answer(self.command, self.path):
                self._send(*planted)
            elif self.headers.get("Upgrade") == "websocket":
                self.close_connection = True
                place = urlsplit(self.path)
                if place.path.endswith("/exec"):
                    _execute(
                        self,
                        api,
                        place.path.removesuffix("/exec"),
                        parse_qs(place.query, keep_blank_values=True),
                    )
                else:
                    _echo(self)
            else:
                found = respond(api, self.command, self.path, body)
                if isinstance(found, dict):
                    self._send(200, {}, json.dumps(found))
                else:
                    self._stream(found)
        except yaml.YAMLError as error:
            self._send(400, {}, json.dumps({"message": str(error)}))
        except Refusal as refusal:
            status = {"kind": "Status", "code": refusal.status, "message": refusal.message}
            self._send(refusal.status, {}, json.dumps(status))

    do_GET = do_PATCH = do_DELETE = do_POST = handle_any  # noqa: N815

    def _body(self) -> Any:
        """Return the request's body. The body of an apply is YAML, which has no surrogate pairs."""
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get_content_type() == "application/apply-patch+yaml":
            return yaml.load(text, yaml.CSafeLoader)
        return json.loads(text) if text else None

    def _send(self, status: int, headers: dict[str, str], text: str) -> None:
        data = text.encode(errors="surrogateescape")
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, parts: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for part in parts:
            self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


def _echo(request: BaseHTTPRequestHandler) -> None:
    """Act as the pod behind a port-forward: send back what it gets, in capitals; fail is an error."""
    _switch(request)
    for channel in (b"\0", b"\1"):
        request.wfile.write(_frame(channel + struct.pack("<H", 6006)))
    while (data := _received(request.rfile)) is not None:
        answer = data[:1] + data[1:].upper()
        request.wfile.write(_frame(b"\1connection refused" if answer == b"\0FAIL" else answer))


def _execute(
    request: BaseHTTPRequestHandler, api: Server, pod: str, query: dict[str, list[str]]
) -> None:
    """Run a command in a pod: channel 0 is its input, 1 its output and errors, 3 its final status."""
    command = api.enter(pod, query["command"])
    _switch(request)
    given = subprocess.PIPE if query["stdin"][0].lower() == "true" else subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
    ) as process:
        threading.Thread(target=_feed, args=(request, process), daemon=True).start()
        assert process.stdout
        while part := process.stdout.read(32 * 1024):
            request.wfile.write(_frame(b"\1" + part))
    status: dict[str, Any] = {"status": "Success"}
    if process.returncode:
        causes = [{"reason": "ExitCode", "message": str(process.returncode)}]
        status = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    request.wfile.write(_frame(b"\3" + json.dumps(status).encode()))
    request.wfile.write(_frame(struct.pack(">H", 1000), operation=8))


def _feed(request: BaseHTTPRequestHandler, process: "subprocess.Popen[bytes]") -> None:
    """Pass the input on. The end of the connection does not close the input, as with an API server."""
    with contextlib.suppress(OSError, ValueError):
        while (data := _received(request.rfile)) is not None:
            if process.stdin:
                process.stdin.write(data[1:])


def _switch(request: BaseHTTPRequestHandler) -> None:
    """Switch the connection to a WebSocket (v4.channel.k8s.io)."""
    key = request.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    digest = hashlib.sha1(key.encode(), usedforsecurity=False).digest()
    request.send_response(101)
    request.send_header("Upgrade", "websocket")
    request.send_header("Connection", "Upgrade")
    request.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
    request.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
    request.end_headers()


def _frame(data: bytes, operation: int = 2) -> bytes:
    size = bytes([len(data)]) if len(data) < 126 else struct.pack(">BH", 126, len(data))
    return bytes([0x80 | operation]) + size + data


def _received(file: Any) -> bytes | None:
    """Return a data frame of the client, or None at the end."""
    head = file.read(2)
    if len(head) < 2 or head[0] & 0x0F != 2:
        return None
    size = head[1] & 0x7F
    if size == 126:
        size = struct.unpack(">H", file.read(2))[0]
    mask, data = file.read(4), file.read(size)
    masked = int.from_bytes(data) ^ int.from_bytes((mask * (size // 4 + 1))[:size])
    return masked.to_bytes(size)
