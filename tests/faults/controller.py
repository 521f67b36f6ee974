"""A job and a controller that restarts its nodes, for tests that disturb the job for a while."""

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.conftest import Started
from tests.faults.account import account
from tests.faults.cluster import Job

LONGEST_RECOVERY = 90  # seconds without a step; more is a failure
_ENDING = 45  # seconds for nodes that trained together to end; their barrier takes up to 30


@dataclass
class Controlled:
    """The job, the controller that restarts its nodes, and what the adversary has done to it."""

    job: Job
    dice: random.Random
    wanted: set[int] = field(default_factory=lambda: {0, 1, 2})
    running: dict[int, Started] = field(default_factory=dict)
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    history: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    endings: Counter[int] = field(default_factory=Counter)
    succeeded: float | None = None  # when a node first ended with 0
    _late: list[Started] = field(default_factory=list)

    def tick(self) -> None:
        """Do what a controller does: restart the wanted nodes that have ended."""
        now = time.monotonic()
        for late, act in [one for one in self.due if one[0] <= now]:
            self.due.remove((late, act))
            act()
        for number, node in list(self.running.items()):
            code = node.process.poll()
            if code is not None:
                del self.running[number]
                self.endings[code] += 1
                if code == 0 and self.succeeded is None:
                    self.succeeded = now
                # A SIGTERM before our handlers are set ends it; a shell calls that 143.
                early = code == -signal.SIGTERM and not node.read(node.stderr)
                assert early or code in (0, 69, 70, 143, -signal.SIGKILL), (number, code)
        for number in sorted(self.wanted - self.running.keys()):
            if not self.finished:
                self.running[number] = self.job.start_one(self.job.hosts[number])
        if self.succeeded is not None and now - self.succeeded > _ENDING:
            self._stop_the_late()

    def _stop_the_late(self) -> None:
        """End nodes that started after the job's end and train nothing, as success policies do."""
        for number, node in self.running.items():
            if node not in self._late:
                assert not node.ranks(), f"{number}: {node.read(node.stderr)}"
                node.process.send_signal(signal.SIGTERM)
                self._late.append(node)

    @property
    def finished(self) -> bool:
        return any(event["event"] == "summary" for event in self.job.events[-3:])

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self.due.append((time.monotonic() + seconds, act))

    def step(self) -> tuple[int, int]:
        """Return how many steps were reported in all, and the last one."""
        steps = [event["step"] for event in self.job.events if event["event"] == "step"]
        return len(steps), steps[-1] if steps else 0

    def wait_for_steps(self, count: int) -> float:
        """Let the job make `count` steps and return how many seconds the first one took."""
        began = time.monotonic()
        before, first = self.step()[0], None
        while not self.finished:
            self.tick()
            done = self.step()[0] - before
            if done and first is None:
                first = time.monotonic() - began
            if done >= count:
                break
            assert time.monotonic() - began < LONGEST_RECOVERY, f"no step in {LONGEST_RECOVERY} s"
            time.sleep(0.1)
        return first or 0.0

    def note(self, text: str) -> None:
        """Print what is done to the job, and record it with the time."""
        report(text)
        self.history.append(f"{time.strftime('%H:%M:%S')} {text}")

    @contextlib.contextmanager
    def explaining(self) -> Iterator["Controlled"]:
        """Add to a failure the history of faults, the processes' output, and their stacks."""
        try:
            yield self
        except Exception as error:
            now = time.strftime("%H:%M:%S")
            doing = account({host.number: host.processes() for host in self.job.hosts})
            raise AssertionError(
                "\n".join([self.job.stderr(), *self.history, doing, f"{now} {error}"])
            ) from error


def report(text: str) -> None:
    """Print a line of a soak's progress."""
    print(f"soak: {text}", flush=True)
