"""A container's log, as the kubelet keeps and serves it: a time before every line.

Left out: rotation and separate streams.
"""

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


@dataclass
class Log:
    """Lines, each with the time at which it was written; `ended` when there will be no more."""

    lines: list[tuple[datetime, bytes]] = field(default_factory=list)
    ended: bool = False
    more: threading.Condition = field(default_factory=threading.Condition)

    def add(self, line: bytes) -> None:
        with self.more:
            self.lines.append((datetime.now(UTC), line if line.endswith(b"\n") else line + b"\n"))
            self.more.notify_all()

    def end(self) -> None:
        with self.more:
            self.ended = True
            self.more.notify_all()

    def read(self, query: dict[str, str]) -> Iterator[bytes]:
        """Yield lines for `sinceTime`, `sinceSeconds`, `tailLines`, `timestamps` and `follow`."""
        since = datetime.min.replace(tzinfo=UTC)
        if "sinceTime" in query:  # the API server passes it on in whole seconds
            since = datetime.fromisoformat(query["sinceTime"]).replace(microsecond=0)
        if "sinceSeconds" in query:
            since = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))
        with self.more:
            at = len(self.lines)
            new = [one for one in self.lines if one[0] >= since]
        if "tailLines" in query:
            new = [*deque(new, int(query["tailLines"]))]
        while True:
            stamped = query.get("timestamps") == "true"
            # as many digits as the kubelet's nanoseconds
            times = (f"{when:%Y-%m-%dT%H:%M:%S.%f}000Z ".encode() for when, _ in new)
            yield b"".join((next(times) if stamped else b"") + line for _, line in new)
            if query.get("follow") != "true":
                return
            with self.more:
                while len(self.lines) == at:
                    if self.ended:
                        return
                    self.more.wait(1.0)
                new = self.lines[at:]
                at = len(self.lines)
