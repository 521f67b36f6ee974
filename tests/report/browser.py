"""A page in headless Chromium: widths, dark mode, no JavaScript, requests and console errors.

with Chromium() as browser, browser.open(path, width=320) as page: page.evaluate("document.title")
"""

import base64
import contextlib
import io
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import websocket
from PIL import Image

from tests.conftest import wait_for

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """An open page. `requests`: the addresses that it requested; `errors`: those of its console."""

    def __init__(self, connection: websocket.WebSocket) -> None:
        self._connection, self._numbers = connection, itertools.count(1)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._events: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := self._receive()).get("id") != number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def evaluate(self, script: str) -> Any:
        """Return the value of a script or of its promise."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, script: str, *, timeout: float = 20) -> None:
        """Wait until a script is true."""
        wait_for(
            lambda: self.evaluate(script), seconds=timeout, seen=lambda: f"never true: {script}"
        )

    def picture(self, selector: str | None = None) -> Image.Image:
        """Return the whole page as pixels, or an element of it."""
        script = f"document.querySelector({json.dumps(selector or 'html')}).getBoundingClientRect()"
        box = json.loads(self.evaluate(f"JSON.stringify({script})"))
        top = self.evaluate("scrollY")
        clip = {"x": box["x"], "y": box["y"] + top, "width": box["width"], "height": box["height"]}
        shot = self.call(
            "Page.captureScreenshot", clip=clip | {"scale": 1}, captureBeyondViewport=True
        )
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")

    def load(self, address: str) -> None:
        """Open an address and wait until it has loaded."""
        self._events.clear()
        self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in self._events:
            self._receive()

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv())
        method, parameters = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(json.dumps(parameters["args"]))
        return message


class Chromium:
    """A browser process with a new profile."""

    def __enter__(self) -> Self:
        """Start the browser."""
        assert PATH is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        options += [f"--user-data-dir={self._profile.name}", "--remote-allow-origins=*"]
        self._process = subprocess.Popen(
            [PATH, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        active = Path(self._profile.name) / "DevToolsActivePort"
        end = time.monotonic() + 30
        while not (active.exists() and active.read_text().count("\n")):
            assert time.monotonic() < end, "Chromium does not start"
            assert self._process.poll() is None, "Chromium has ended"
            time.sleep(0.05)
        self._port = int(active.read_text().split()[0])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(timeout=20)
        self._profile.cleanup()

    @contextlib.contextmanager
    def open(
        self, path: Path | str, *, width: int = 1400, dark: bool = False, script: bool = True
    ) -> Iterator[Page]:
        """Open a file or an address in a new page, `width` pixels wide."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT"
        )
        with urllib.request.urlopen(request) as answer:  # noqa: S310  # to this machine
            target = json.load(answer)
        connection = websocket.create_connection(target["webSocketDebuggerUrl"], timeout=30)
        try:
            page = Page(connection)
            for domain in ("Page", "Network", "Log", "Runtime"):
                page.call(f"{domain}.enable")
            page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=900,
                deviceScaleFactor=1,
                mobile=False,
            )
            page.call("Emulation.setScrollbarsHidden", hidden=True)  # a picture has none
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            page.call("Emulation.setEmulatedMedia", features=[scheme])
            page.call("Emulation.setScriptExecutionDisabled", value=not script)
            page.load(path if isinstance(path, str) else path.as_uri())
            yield page
        finally:
            connection.close()
            urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/json/close/{target['id']}"
            ).close()


def is_drawn(page: Page) -> None:
    """Wait until the script has drawn every chart."""
    page.wait_for("[...document.querySelectorAll('figure')].every(one => one.dataset.drawn)")
