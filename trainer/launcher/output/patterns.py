r"""Reads events out of the lines that a program of any kind writes.

    patterns = Patterns({"step": r"step=(\d+)", "loss": r"loss=(\S+)"}, Path("runs/train"))
    line = patterns.read("step=3 loss=0.25")    # '{"event": "step", ...}', also in metrics.jsonl

The names are step, loss, samples_per_second and checkpoint. A pattern has one group, or one named
value.
"""

import contextlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_INTERVAL = 1.0  # seconds, at least, between events of steps without any figure
_LONGEST = 10_000  # characters of a line that are searched


class Patterns:
    """Events go to `folder`/metrics.jsonl; the caller writes them to standard output."""

    def __init__(self, patterns: Mapping[str, str], folder: Path) -> None:
        self._patterns = {name: re.compile(text) for name, text in patterns.items()}
        self._file = folder / "metrics.jsonl"
        self._step = 0
        self._written = 0.0

    def read(self, line: str) -> str:
        """Return the event that a line tells, as a line; "" when there is none."""
        found = {name: value for name in self._patterns if (value := self._find(name, line))}
        if "checkpoint" in found:
            return self._write("checkpoint", action="saved", path=found["checkpoint"])
        figures: dict[str, Any] = {}
        for name, field in (("loss", "loss"), ("samples_per_second", "samples_per_s")):
            with contextlib.suppress(ValueError, KeyError):
                figures[field] = float(found[name])
        with contextlib.suppress(ValueError, KeyError):
            step = int(found["step"])
            is_new, self._step = step != self._step, step
            if is_new and not figures and time.monotonic() - self._written >= _INTERVAL:
                return self._write("step", step=step)
        return self._write("step", step=self._step, **figures) if figures else ""

    def _find(self, name: str, line: str) -> str:
        pattern = self._patterns[name]
        found = pattern.search(line[:_LONGEST])
        return (found["value" if "value" in pattern.groupindex else 1] or "") if found else ""

    def _write(self, kind: str, **fields: object) -> str:
        self._written = time.monotonic()
        line = json.dumps({"event": kind, "time": time.time(), **fields})
        with contextlib.suppress(OSError):  # a full disk does not stop the run
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        return line
