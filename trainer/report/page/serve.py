"""Serves the report on this machine while its runs go on; the page reloads when they have new events.

serve([Path("runs/digits")], port=8080)      # until Ctrl-C
"""

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from wsgiref.types import StartResponse, WSGIEnvironment

from trainer.config.exits import Exit, Fault
from trainer.report.history import event_files, read_all
from trainer.report.page.write import page
from trainer.report.web_server import served

_PAUSE = 2.0  # seconds between two checks of the runs' files
_SHARE = 0.25  # of a core at most: a page of a long run takes seconds to make
_HOST = "127.0.0.1"
_NAMES = (
    _HOST,
    "localhost",
)  # refuse other names: a web site may point its own here (DNS rebinding)

log = logging.getLogger("report")


def serve(folders: Sequence[Path], *, port: int) -> None:
    """Serve the report at `port` until interrupted; 0: any free port.

    Raises Fault(65) for a folder without events, Fault(64) when the port is in use.
    """
    try:
        shown = _Shown(folders)
        with served(shown.answer, port=port, host=_HOST) as opened:
            print(f"http://{_HOST}:{opened}/", flush=True)
            while True:
                time.sleep(max(_PAUSE, shown.seconds / _SHARE))
                shown.refresh()
    except KeyboardInterrupt:
        return
    except OSError as error:
        raise Fault(
            Exit.CONFIG, f"--port {port}: {error.strerror}; leave it out for a free one"
        ) from None


class _Shown:
    """The page that is served. `seconds`: the processor time that it took to make."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._state = _state(folders)
        self._make()

    def refresh(self) -> None:
        """Make the page again if there are new events; keep it if a run cannot be read."""
        try:
            state = _state(self._folders)
            if state != self._state:
                self._make()
                self._state = state
        except (Fault, OSError) as error:
            log.warning("%s; the page is not updated", error)

    def answer(self, request: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer a request for the page, or the page's request for the newest version."""
        page, version = self._answers
        bodies = {"/": ("text/html", page), "/version": ("text/plain", version)}
        kind, body = bodies.get(request["PATH_INFO"], ("text/plain", b""))
        is_found = body and request.get("HTTP_HOST", "").rpartition(":")[0] in _NAMES
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Cache-Control": "no-store"}
        headers |= {"X-Content-Type-Options": "nosniff"}
        start("200 OK" if is_found else "404 Not Found", [*headers.items()])
        return [body if is_found else b""]

    def _make(self) -> None:
        began, version = time.process_time(), str(time.time_ns())
        text = page(read_all(self._folders), version=version)
        self._answers = text.encode(), version.encode()
        self.seconds = time.process_time() - began


def _state(folders: Sequence[Path]) -> list[tuple[Path, int, int]]:
    """Return what changes when an event is written."""
    files = [file for folder in folders for file in event_files(folder)]
    stats = [file.stat() for file in files]
    return [(file, stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats, strict=True)]
