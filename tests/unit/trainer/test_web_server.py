"""The ports for Prometheus and browsers: limited threads and connections, for any client."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

from tests.conftest import wait_for
from tests.pool import free_port
from trainer.report import web_server
from trainer.report.web_server import served

HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def port() -> Iterator[int]:
    registry = CollectorRegistry()
    Gauge("muster_step", "steps", registry=registry).set(7)
    number = free_port()
    with served(make_wsgi_app(registry), port=number):
        yield number


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "_SECONDS", 0.5)


def scrape(port: int) -> str:
    with urlopen(f"http://localhost:{port}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_answers_over_both_families(host: str, port: int) -> None:
    with socket.create_connection((host, port), timeout=5) as connection:
        connection.sendall(HALF + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 200 OK")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        pytest.param(b"GET /\r\n" * 5, marks=pytest.mark.slow),
        pytest.param(HALF, marks=pytest.mark.slow),
        pytest.param(b"\xff" * 70_000, marks=pytest.mark.slow),
    ],
)
def test_half_open_connections_hold_no_threads(sent: bytes, port: int) -> None:
    before = threading.active_count()
    connections = []
    for _ in range(312):
        connection = socket.create_connection(("127.0.0.1", port), timeout=5)
        connections.append(connection)
        with contextlib.suppress(OSError):  # closed at once: one too many
            connection.sendall(sent)
        holds(before + 2 * 8 + 1, seconds=0.2)  # less than a connection may take
    text, limit = "", time.monotonic() + 20
    while not text and time.monotonic() < limit:
        with contextlib.suppress(OSError):  # connections that wait to be accepted come first
            text = scrape(port)
    assert "muster_step 7.0" in text
    holds(before)
    for connection in connections:
        connection.close()


@pytest.mark.usefixtures("impatient")
def test_a_byte_at_a_time_does_not_hold_one_either(port: int) -> None:
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        began = time.monotonic()
        with pytest.raises(OSError, match=r".*"):  # noqa: PT012  # it goes on until it is cut
            while time.monotonic() < began + 10:
                connection.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began < 5
    holds(before)


def holds(most: int, *, seconds: float = 10) -> None:
    """Wait until there are at most so many threads: a thread ends some time after its connection."""
    wait_for(lambda: threading.active_count() <= most, seconds=seconds)
