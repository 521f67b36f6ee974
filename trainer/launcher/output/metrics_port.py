"""Serves a program's figures to Prometheus with the trainer's names, unless it serves the port itself.

port = MetricsPort(9400, Path("runs/train"))
port.take({"event": "step", "time": 1.7e9, "step": 3})

Only one process can listen on a port, and the program comes first. So the launcher listens from the
first event on; if there is none, after five minutes.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainer.report.events import Event
from trainer.report.live.figures import Figures, as_text

_PATIENCE = 300.0  # seconds after the start of the ranks

_log = logging.getLogger("launch")


class MetricsPort:
    """`port` 0: nothing is served."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._figures = Figures(folder)
        self._since = float("inf")
        self._stack = contextlib.ExitStack()
        self._is_tried = port == 0

    def began(self) -> None:
        """Note that the ranks start."""
        self._since = time.monotonic()

    def take(self, event: Event) -> None:
        """Keep an event's figures; serve them from the first step on."""
        self._figures.take(event)
        if event["event"] != "launch":
            self._open()

    def poll(self) -> None:
        """Serve the figures, if no event has come for a long time."""
        if time.monotonic() - self._since >= _PATIENCE:
            self._open()

    def close(self) -> None:
        """Stop serving."""
        self._is_tried = True
        self._stack.close()

    def _open(self) -> None:
        if self._is_tried:
            return
        self._is_tried = True
        from trainer.report.web_server import served  # noqa: PLC0415  # rarely needed

        try:
            self._stack.enter_context(served(self._answer, port=self._port))
        except OSError as error:
            _log.info(
                "TRAINER_METRICS_PORT=%d: %s; the launcher leaves the port to the program",
                self._port,
                error.strerror,
            )

    def _answer(self, _: object, start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer as a WSGI application, on any path."""
        text = as_text(self._figures.families())
        start("200 OK", [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")])
        return [text.encode(errors="replace")]
