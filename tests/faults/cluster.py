"""Starts a job on hosts, as a controller would, and reads its events."""

import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import ROOT, Started
from tests.faults.account import SITE
from tests.faults.hosts import Host

PORT = 29500
STOOD_STILL = 1.0  # seconds between two looks, of 0.02 s each

# The synthetic task, slowed down so that tests can disturb it: a file has the seconds of a step.
PACED = """
import os, time
from pathlib import Path
from trainer.tasks.synthetic import Task

class Paced(Task):
    def loss(self, *arguments):
        time.sleep(float(Path(os.environ["PACE"]).read_text() or 0))
        return super().loss(*arguments)
"""


@dataclass
class Job:
    """A job of fixed size on `hosts`; all write to one folder, like a shared volume."""

    folder: Path
    hosts: list[Host]
    settings: dict[str, str]
    pace: float = 0.02
    elastic: str = ""  # MIN:MAX nodes
    attempts: int = 0
    nodes: list[Started] = field(default_factory=list)
    _read: int = 0  # bytes of the events' file
    _events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events of all attempts so far."""
        file = self.folder / "run" / "metrics.jsonl"
        if file.exists():  # only new lines: a soak reads ten times a second
            with file.open("rb") as lines:
                lines.seek(self._read)
                whole, newline, _ = lines.read().rpartition(b"\n")
            self._read += len(whole + newline)
            self._events += [json.loads(line) for line in whole.splitlines() if line[-1:] == b"}"]
        return self._events

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "paced.py").write_text(PACED, encoding="utf-8")
        (self.folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")
        self.set_pace(self.pace)

    def set_pace(self, seconds: float) -> None:
        """Make every step from now on take this much longer."""
        written = self.folder / "pace.new"
        written.write_text(str(seconds), encoding="utf-8")
        written.rename(self.folder / "pace")

    def start(self, **added: str) -> None:
        """Start a launcher on every host."""
        self.attempts += 1
        self.nodes = [self.start_node(host, **added) for host in self.hosts]

    def start_one(self, host: Host, **added: str) -> Started:
        """Start a launcher on one host of an elastic job."""
        self.nodes.append(self.start_node(host, **added))
        return self.nodes[-1]

    def start_node(self, host: Host, **added: str) -> Started:
        fixed = {
            "PET_NNODES": str(len(self.hosts)),
            "PET_MASTER_ADDR": self.hosts[0].address,
            "PET_MASTER_PORT": str(PORT),
        }
        ranged = {
            "PET_NNODES": self.elastic,
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"{self.hosts[0].address}:{PORT}",
        }
        place = {
            **(ranged if self.elastic else fixed),
            "PET_NODE_RANK": str(self.hosts.index(host)),
            "PET_NPROC_PER_NODE": "1",
            "PET_LOCAL_ADDR": host.address,
            "PET_RDZV_ID": f"attempt-{self.attempts}",
            "TRAINER_TASK": "paced:Paced",
            "PACE": str(self.folder / "pace"),
            "TRAINER_OUT": str(self.folder / "run"),
            "TRAINER_LOG_STEPS": "1",
            "PYTHONPATH": f"{self.folder}:{ROOT}",
        }
        return host.start(self.folder, "-m", "trainer.launch", **(place | self.settings | added))

    def wait_for_step(self, step: int) -> int:
        """Wait until this attempt has done `step` steps and return how many it has done."""
        until = time.monotonic() + 180
        while True:
            steps = [event["step"] for event in self.events if event["event"] == "step"]
            if steps and steps[-1] >= step:
                return int(steps[-1])
            assert time.monotonic() < until, self.stderr()
            assert any(node.process.poll() is None for node in self.nodes), self.stderr()
            time.sleep(0.02)

    def stderr(self) -> str:
        files = [Path(node.stderr.name) for node in self.nodes]
        return "\n".join(f"--- {file}\n{file.read_text(encoding='utf-8')}" for file in files)

    def codes(self, *, within: float) -> list[int]:
        """Return the nodes' exit codes; all nodes must end `within` seconds from now.

        The time starts again if this machine has stood still, as it does in the launchers.
        """
        last = time.monotonic()
        until = last + within
        while any(node.process.poll() is None for node in self.nodes):
            now = time.monotonic()
            if now - last > STOOD_STILL:
                until = now + within
            assert now < until, f"not ended in {within} s\n{self.states()}\n{self.stderr()}"
            last = now
            time.sleep(0.02)
        return [int(node.process.returncode) for node in self.nodes]

    def states(self) -> str:
        """Return what every process waits for: a process in state D cannot be killed."""
        lines = []
        for node in self.nodes:
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                for process in node.family():
                    waits = Path(f"/proc/{process.pid}/wchan").read_text(encoding="ascii")
                    lines.append(f"{process.pid} {process.name()} {process.status()} {waits}")
        return "\n".join(lines)

    def rank_of(self, node: int) -> psutil.Process:
        """Return the rank's process on a node."""
        (rank,) = self.nodes[node].ranks()
        return rank


def faults(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "fault" and event["kind"] == kind]
