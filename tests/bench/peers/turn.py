"""The contender's side of taking turns: it takes steps when the benchmark asks, and reports their time.

turns = Turns()
for batch in batches:
    ...
    turns.step()
"""

import json
import os
import socket
import time
from collections.abc import Callable

STEPS = int(os.environ.get("BENCH_STEPS", "100"))
FAIL = int(os.environ.get("BENCH_FAIL", "0"))
FIRST, FAILED = "the first step is done", "this rank fails as it was asked to"


class Turns:
    """Counts steps; after the last step of a turn, reports its times and waits for the next request.

    The benchmark sends a byte on the socket BENCH_SOCKET. When it closes the socket, the process ends.
    Without this variable only the first step is reported, and rank 0 fails once, at step BENCH_FAIL.
    """

    def __init__(self) -> None:
        self.done = 0
        self._asked = "BENCH_SOCKET" in os.environ
        if not self._asked:
            return
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ["BENCH_SOCKET"])
        self._wait()

    def step(self, rest: Callable[[], object] = lambda: None) -> None:
        """Count a step; `rest` is work that goes on and must end before another contender's turn."""
        self.done += 1
        if not self._asked:
            if self.done == 1:
                print(FIRST, flush=True)
            place = os.environ.get("RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT")
            if self.done == FAIL and place == ("0", "0"):
                raise RuntimeError(FAILED)
        elif self.done % STEPS == 0:
            cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
            rest()
            self._socket.sendall(json.dumps({"cpu": cpu, "wall": wall}).encode() + b"\n")
            self._wait()

    def _wait(self) -> None:
        if not self._socket.recv(1):
            os._exit(0)
        self._cpu, self._wall = time.process_time(), time.perf_counter()
