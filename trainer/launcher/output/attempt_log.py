"""Writes what a launcher knows about its ranks' attempts to `logs/HOST.jsonl` in the run folder.

Rank 0's events do not show when nodes were waited for, when ranks started, and why they failed: rank 0
may have been killed. Each node has its own file, because several nodes cannot append to one file of a
shared volume.

    attempts = AttemptLog(Path("runs/digits"), contract)
    attempts.write("ended", exit=70)
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from trainer.config.contract import Contract
from trainer.launcher.failures import Failure, find_cause
from trainer.regular import open_to_append
from trainer.rendezvous.events import Round
from trainer.watch.process_start import process_start

_LONGEST = 2000  # characters kept of a traceback, from its end
_LONGEST_LINE = 500


class AttemptLog:
    """Appends `attempt` events; a disk that cannot be written does not stop the run."""

    def __init__(self, run_folder: Path, contract: Contract) -> None:
        self._host = socket.gethostname()
        # The nodes of an elastic job have no number.
        self._node = None if contract.elastic else contract.node_rank
        self._path = run_folder / "logs" / f"{self._host}.jsonl"
        self.reason = ""  # why the ranks here failed last, in one line
        self.write("launched", began=process_start())

    def write(self, action: str, **fields: object) -> None:
        """Append an event: launched, waiting, started, failed or ended, with what is known about it."""
        place = {"action": action, "host": self._host, "node": self._node}
        event = {"event": "attempt", "time": time.time(), **place, **fields}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(open_to_append(self._path), "wb", buffering=0) as file:
                file.write(f"{json.dumps(event)}\n".encode())

    def write_start(self, place: Round, restarts: int) -> None:
        """Append that the ranks of a round have been started."""
        self.write(
            "started",
            nodes=place.nodes,
            world_size=place.world_size,
            first_rank=place.first_rank,
            restarts=restarts,
        )

    def write_failures(self, failures: Mapping[int, Failure]) -> None:
        """Append why ranks failed, by global rank, the first cause first."""
        _, first = find_cause(failures)
        self.reason = f"rank {first}: {failures[first].message}" if first is not None else ""
        ranks = [
            {
                "rank": rank,
                "exit": failures[rank].code,
                "message": failures[rank].message,
                "time": failures[rank].when,
                "traceback": failures[rank].traceback[-_LONGEST:],
                "last_lines": [line[:_LONGEST_LINE] for line in failures[rank].last_lines],
            }
            for rank in sorted(failures, key=lambda rank: rank != first)
        ]
        self.write("failed", ranks=ranks)
