"""An HTTP server for Prometheus and browsers, with few threads and a time limit for each connection.

with served(application, port=9400): ...                     # on all interfaces
with served(application, port=0, host="127.0.0.1") as port: ...

prometheus_client's own server starts a thread for each connection, without a timeout: 312 half-open
requests held 312 threads of rank 0 forever. This module needs only the standard library.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

_CONNECTIONS = 8  # at once; further ones are closed
_SECONDS = 5  # that a connection may take


@contextlib.contextmanager
def served(application: Callable[..., Any], *, port: int, host: str = "") -> Iterator[int]:
    """Serve a WSGI application at an IPv4 address, or all addresses; yield the port. 0: a free port.

    Raises OSError when the port is in use.
    """
    family, address = (socket.AF_INET, host) if host else _any_address()
    _Server.address_family = family
    with _Server((address, port), _Handler) as server:
        server.set_app(application)
        serve = partial(server.serve_forever, poll_interval=0.1)  # `shutdown` waits as long
        thread = threading.Thread(target=serve, name="web", daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    request_queue_size = 128
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.Semaphore(_CONNECTIONS)
        super().__init__(*arguments)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]  # no look-up of a name
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or close the connection when there are too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A timeout for each read would let a client hold the thread by sending single bytes.
        end = threading.Timer(_SECONDS, _cut, [request])
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: the connection was closed, or the request was invalid."""


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _any_address() -> tuple[socket.AddressFamily, str]:
    """Return the address of all interfaces; with IPv6 it also serves IPv4."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.bind(("::", 0))
        return socket.AF_INET6, "::"
    return socket.AF_INET, "0.0.0.0"  # noqa: S104  # Prometheus is on another machine
