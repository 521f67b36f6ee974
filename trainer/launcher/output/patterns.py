r"""Reads events from the lines that any program writes.

    patterns = Patterns({"step": r"step=(\d+)", "loss": r"loss=(\S+)"})
    event = patterns.read("step=3 loss=0.25")    # {"event": "step", "step": 3, "loss": 0.25}

The names are step, loss, samples_per_second and checkpoint. A pattern has one group, or one named
value. If it also has the groups epoch and of, the value starts at 0 in each epoch, of `of` steps.
"""

import contextlib
import re
import time
from collections.abc import Mapping

from trainer.report.events import Event

_INTERVAL = 1.0  # seconds at least between events of steps without a figure
_LONGEST = 10_000  # characters of a line that are searched
_COMMA = re.compile(r"(?<=\d)(?<!\b0),(?=\d{3})")  # of thousands: in 1,234.5, not in 0,123


class Patterns:
    """Keeps the last step, because a step and its loss may be in two lines."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = {name: re.compile(text) for name, text in patterns.items()}
        self._step = self._before = 0  # the newest, and the steps of the epochs before
        self._read = 0.0

    def read(self, line: str) -> Event | None:
        """Return the event in a line, without its time; None if there is none."""
        found = {name: value for name in self._patterns if (value := self._find(name, line))}
        if "checkpoint" in found:
            return self._event("checkpoint", action="saved", path=found["checkpoint"])
        figures: dict[str, object] = {}
        for name, field in (("loss", "loss"), ("samples_per_second", "samples_per_s")):
            with contextlib.suppress(ValueError, KeyError):
                figures[field] = float(_COMMA.sub("", found[name]))
        with contextlib.suppress(ValueError, KeyError):
            step = int(_COMMA.sub("", found["step"])) + self._before
            is_new, self._step = step != self._step, step
            if is_new and not figures and time.monotonic() - self._read >= _INTERVAL:
                return self._event("step", step=step)
        return self._event("step", step=self._step, **figures) if figures else None

    def _find(self, name: str, line: str) -> str:
        pattern = self._patterns[name]
        found = pattern.search(line[:_LONGEST])
        if found and {"epoch", "of"} <= pattern.groupindex.keys():
            with contextlib.suppress(ValueError, TypeError):
                self._before = int(found["epoch"]) * int(_COMMA.sub("", found["of"]))
        return (found["value" if "value" in pattern.groupindex else 1] or "") if found else ""

    def _event(self, kind: str, **fields: object) -> Event:
        self._read = time.monotonic()
        return {"event": kind, **fields}
