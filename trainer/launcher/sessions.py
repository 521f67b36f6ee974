"""Finds the processes of ranks (Linux): a rank leads a session, and what it has started is in it, too.

Process groups are not enough, because `timeout` and a shell's job control make new ones.

    for one in processes({rank.pid}): os.kill(one.pid, signal.SIGKILL)
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Member:
    """A process of a session; `seconds`: the processor time that it and its ended children have used."""

    pid: int
    parent: int
    has_ended: bool  # nobody has waited for it yet, and perhaps nobody will
    seconds: float


def processes(leaders: Collection[int]) -> Iterator[Member]:
    """Yield the processes of the sessions with these leaders."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # See proc(5); a name may contain spaces and brackets.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) in leaders:
                seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
                yield Member(int(folder.name), int(fields[1]), fields[0] in "ZX", seconds)
