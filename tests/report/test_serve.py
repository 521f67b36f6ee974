"""`python -m trainer.report RUN --serve`: the page of an active run, in a headless Chromium."""

import contextlib
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.conftest import QUICK
from tests.pool import free_port
from tests.report.browser import PATH, Chromium, is_drawn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PATH is None, reason="no Chromium is installed"),
]

STEP = r"step ([\d,]+) of"


def fetch(address: str, **headers: str) -> bytes:
    with urlopen(Request(address, headers=headers), timeout=10) as answer:  # noqa: S310  # our own
        text: bytes = answer.read()
    return text


@pytest.fixture
def run(start: Any, tmp_path: Path) -> Path:
    """A run that continues until it is stopped."""
    folder = tmp_path / "run"
    more = {"TRAINER_STEPS": "1000000", "TRAINER_LOG_STEPS": "50", "TRAINER_OUT": str(folder)}
    start("-m", "trainer", **(QUICK | more)).wait_for('"step": 100,')
    return folder


def test_the_page_follows_the_run_and_ctrl_c_ends_it(run: Path, start: Any) -> None:
    process = start("-m", "trainer.report", str(run), "--serve")
    process.wait_for("http://")
    address = process.read(process.out).strip()
    text = "document.querySelector('.verdict')?.textContent"
    with Chromium() as browser, browser.open(address) as page:
        first = re.search(STEP, page.evaluate(text))
        assert first is not None
        is_drawn(page)
        page.evaluate("document.querySelector('#loss input.log').click()")
        page.wait_for("document.querySelector('#loss').dataset.drawn == 'log'")
        page.wait_for(f"!({text} ?? '{first[0]}').includes('{first[0]}')", timeout=90)
        page.wait_for("document.readyState == 'complete'")
        second = re.search(STEP, page.evaluate(text))
        assert second is not None
        assert int(second[1].replace(",", "")) > int(first[1].replace(",", ""))
        page.wait_for("document.querySelector('#loss')?.dataset.drawn == 'log'")  # kept
        assert set(page.requests) <= {address, f"{address}version"}
        assert f"{address}version" in page.requests
        assert page.errors == []
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(timeout=10) == 0
    assert "Traceback" not in process.read(process.stderr)


def test_hostile_clients_neither_hold_it_nor_get_anything(run: Path, start: Any) -> None:
    port = free_port()
    serving = ("-m", "trainer.report", str(run), "--serve", "--port", str(port))
    start(*serving).wait_for(f"http://127.0.0.1:{port}/")
    address = f"http://localhost:{port}"
    for path, host in (("/", f"evil.example:{port}"), ("/../metrics.jsonl", f"localhost:{port}")):
        with pytest.raises(HTTPError, match="404") as refused:
            fetch(address + path, Host=host)
        assert refused.value.read() == b""
    with contextlib.ExitStack() as stack:
        for _ in range(32):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):  # one too many
                connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        end, found = time.monotonic() + 20, b""
        while not found:
            assert time.monotonic() < end
            with contextlib.suppress(OSError):
                found = fetch(address)
        assert b"connect-src 'self'" in found
    second = start(*serving)
    assert second.process.wait(timeout=60) == 64
    refusal = f"--port {port}: Address already in use; leave it out for a free one"
    assert refusal in second.read(second.stderr)
