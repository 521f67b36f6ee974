"""A contender's side of taking turns: so many steps when the benchmark asks, then what they took.

turns = Turns()
for batch in batches:
    ...
    turns.step()
"""

import json
import os
import socket
import time

STEPS = int(os.environ.get("BENCH_STEPS", "100"))


class Turns:
    """Counts steps; after the last of a turn, reports its times and waits to be asked again.

    The benchmark asks by a byte on the socket BENCH_SOCKET. When it hangs up, the process ends. Without
    the variable only the first step is reported, in a line.
    """

    def __init__(self) -> None:
        self._done = 0
        self._asked = "BENCH_SOCKET" in os.environ
        if not self._asked:
            return
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ["BENCH_SOCKET"])
        self._wait()

    def step(self) -> None:
        self._done += 1
        if not self._asked:
            if self._done == 1:
                print("first step", flush=True)
        elif self._done % STEPS == 0:
            cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
            self._socket.sendall(json.dumps({"cpu": cpu, "wall": wall}).encode() + b"\n")
            self._wait()

    def _wait(self) -> None:
        if not self._socket.recv(1):
            os._exit(0)
        self._cpu, self._wall = time.process_time(), time.perf_counter()
