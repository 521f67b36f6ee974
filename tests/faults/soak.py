"""A soak: an elastic job on three hosts trains while a seeded adversary does what clusters do.

At the end its weights must equal those of an undisturbed run, and its ledger must show that each
sample of each epoch was used once. Where network namespaces are not permitted the hosts are process
groups on the loopback interface, and links are not cut.

    make soak SECONDS=600 SEED=7
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.conftest import Started
from tests.faults.cluster import Job
from tests.faults.hosts import Host, Loopback, network, why_not
from tests.ranks import run_ranks, weights
from trainer.data import ledger
from trainer.exits import Exit

INTERVAL = 16  # steps between checkpoints
PACE = 0.05  # seconds a step while the adversary is at work
STEPS_PER_EPOCH = 128
TOLERANCE = 1e-8
LONGEST_RECOVERY = 90  # seconds without a step that are too many
PEER_TIMEOUT = 3.0  # the default of TRAINER_PEER_TIMEOUT


@dataclass
class Soak:
    """The job, the controller that restarts its nodes, and what the adversary has done to it."""

    job: Job
    dice: random.Random
    wanted: set[int] = field(default_factory=lambda: {0, 1, 2})
    running: dict[int, Started] = field(default_factory=dict)
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    endings: Counter[int] = field(default_factory=Counter)

    def tick(self) -> None:
        """Do what a controller does: see who has ended, and start again who is wanted."""
        now = time.monotonic()
        for late, act in [one for one in self.due if one[0] <= now]:
            self.due.remove((late, act))
            act()
        for number, node in list(self.running.items()):
            code = node.process.poll()
            if code is not None:
                del self.running[number]
                self.endings[code] += 1
                assert code in (0, 69, 70, 143, -signal.SIGKILL), (number, code, self.job.words())
        for number in sorted(self.wanted - self.running.keys()):
            if not self.finished:
                self.running[number] = self.job.start_one(self.job.hosts[number])

    @property
    def finished(self) -> bool:
        return any(event["event"] == "summary" for event in self.job.events[-3:])

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self.due.append((time.monotonic() + seconds, act))

    def step(self) -> tuple[int, int]:
        """Return how many steps were ever reported, and the last one."""
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
            assert time.monotonic() - began < LONGEST_RECOVERY, self.job.words()
            time.sleep(0.1)
        return first or 0.0


def kill_a_rank(soak: Soak, host: Host) -> None:
    """SIGKILL to what a launcher has started."""
    signal_to(soak, host, signal.SIGKILL, ranks=True)


def kill_an_agent(soak: Soak, host: Host) -> None:
    """SIGKILL to the launcher; its rank must die too."""
    signal_to(soak, host, signal.SIGKILL, ranks=False)


def kill_a_host(soak: Soak, host: Host) -> None:
    """Every process of a host at once, its link down."""
    host.die()
    soak.later(1, host.mend)


def cut_a_link(soak: Soak, host: Host) -> None:
    """A silent cut, longer than what is forgiven."""
    host.cut()
    soak.later(PEER_TIMEOUT * soak.dice.uniform(1.5, 2.5), host.mend)


def cut_a_link_briefly(soak: Soak, host: Host) -> None:
    """A silent cut that need not cost anything."""
    host.cut()
    soak.later(PEER_TIMEOUT * soak.dice.uniform(0.1, 0.4), host.mend)


def stop_an_agent(soak: Soak, host: Host) -> None:
    """SIGSTOP to the launcher, and SIGCONT, perhaps too late."""
    stop_for(soak, host, PEER_TIMEOUT * soak.dice.uniform(0.2, 2), ranks=False)


def stop_a_rank(soak: Soak, host: Host) -> None:
    """SIGSTOP to a rank, and SIGCONT: all wait for it."""
    stop_for(soak, host, soak.dice.uniform(0.5, 4), ranks=True)


def slow_a_rank(soak: Soak, host: Host) -> None:
    """A rank that gets a tenth of its time."""
    for tenth in range(20):
        soak.later(tenth * 0.2, lambda: stop_for(soak, host, 0.18, ranks=True))


def send_a_node_away(soak: Soak, host: Host) -> None:
    """SIGTERM to the launcher: it leaves in order, and comes back later."""
    signal_to(soak, host, signal.SIGTERM, ranks=False)
    if host.number:
        soak.wanted.discard(host.number)
        soak.later(soak.dice.uniform(3, 12), lambda: soak.wanted.add(host.number))


FAULTS = [
    kill_a_rank,
    kill_an_agent,
    kill_a_host,
    cut_a_link,
    cut_a_link_briefly,
    stop_an_agent,
    stop_a_rank,
    slow_a_rank,
    send_a_node_away,
]
NEED_LINKS = {cut_a_link, cut_a_link_briefly}


def processes(soak: Soak, host: Host, *, ranks: bool) -> list[psutil.Process]:
    node = soak.running.get(host.number)
    try:
        top = psutil.Process(node.process.pid) if node else None
        return (top.children() if ranks else [top]) if top else []
    except psutil.NoSuchProcess:
        return []


def signal_to(soak: Soak, host: Host, number: signal.Signals, *, ranks: bool) -> None:
    send(processes(soak, host, ranks=ranks), number)


def send(found: list[psutil.Process], number: signal.Signals) -> None:
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def stop_for(soak: Soak, host: Host, seconds: float, *, ranks: bool) -> None:
    stopped = processes(soak, host, ranks=ranks)  # those, and no rank that starts meanwhile
    send(stopped, signal.SIGSTOP)
    soak.later(seconds, lambda: send(stopped, signal.SIGCONT))


def disturb(soak: Soak, seconds: float, *, links: bool) -> None:
    """Inject one fault after the other; each time see the job make steps again."""
    possible = [fault for fault in FAULTS if links or fault not in NEED_LINKS]
    soak.wait_for_steps(INTERVAL + 5)  # its start is no part of the seconds
    end = time.monotonic() + seconds
    deck: list[Callable[[Soak, Host], None]] = []
    while time.monotonic() < end and not soak.finished:
        # Each of them before one comes again, so that a short soak has most.
        deck = deck or soak.dice.sample(possible, len(possible))
        fault = deck.pop()
        host = soak.dice.choice([h for h in soak.job.hosts if h.number in soak.running])
        say(f"step {soak.step()[1]}: {fault.__name__} on host {host.number}")
        soak.faults[fault.__name__] += 1
        fault(soak, host)
        soak.tick()
        time.sleep(0.3)  # what was under way when the fault came is no recovery
        soak.recoveries.append(soak.wait_for_steps(soak.dice.randrange(3, 40)))


def lost_steps(job: Job) -> list[int]:
    """Return, for every time the job went back to a checkpoint, how many steps it did again."""
    lost, last = [], 0
    for event in job.events:
        if event["event"] == "step":
            last = event["step"]
        elif event.get("action") == "resumed":
            lost.append(last - event["step"])
    return lost


def compare(folder: Path, run: Path, settings: dict[str, str], *, timeout: float) -> float:
    """Return the largest relative difference of a tensor to the undisturbed run's."""
    once = settings | {"task": "synthetic", "checkpoint_steps": "0"}
    run_ranks(1, folder / "whole", timeout=timeout, **once)
    ours, theirs = weights(run), weights(folder / "whole")
    return max(float((ours[n] - theirs[n]).norm() / theirs[n].norm()) for n in theirs)


@contextlib.contextmanager
def three_hosts() -> Iterator[tuple[list[Host], bool]]:
    """Yield the hosts, and whether they have links that can be cut."""
    if reason := why_not():
        say(f"no network namespaces, so processes on one host and no cut links: {reason}")
        hosts = [Loopback(number) for number in range(3)]
        try:
            yield hosts, False
        finally:
            for host in hosts:
                host.remove()
        return
    with network() as net:
        yield [net.host() for _ in range(3)], True


def soak(seconds: float, seed: int) -> int:
    """Run and return the exit code; raises AssertionError with what was not as it must be."""
    epochs = max(1, round(seconds / PACE / STEPS_PER_EPOCH))
    settings = {
        "epochs": str(epochs),
        "checkpoint_steps": str(INTERVAL),
        "precision": "fp64",
        "eval_steps": "0",
    }
    variables = {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
    variables |= {"TRAINER_LEDGER": "true", "TRAINER_LAST_CALL": "2"}
    say(f"seed {seed}, {seconds:.0f} s, {epochs} epochs of {STEPS_PER_EPOCH} steps")
    with (
        tempfile.TemporaryDirectory(prefix="muster-soak-") as name,
        three_hosts() as (hosts, links),
    ):
        folder = Path(name)
        job = Job(folder / "job", hosts, variables, pace=PACE, elastic="1:3", attempts=1)
        ours = Soak(job, random.Random(seed))  # noqa: S311
        disturb(ours, seconds, links=links)
        ours.wanted = {0, 1, 2}
        job.set_pace(0)
        began = time.monotonic()
        while not ours.finished or ours.running or ours.due:
            ours.tick()
            assert time.monotonic() - began < LONGEST_RECOVERY + seconds, job.words()
            time.sleep(0.1)
        proof = ledger.check(ledger.read(job.folder / "run"))
        lost = lost_steps(job)
        for fault, count in sorted(ours.faults.items()):
            say(f"{count:4d} x {fault}")
        say(f"exit codes {dict(ours.endings)}; gone back {len(lost)} times, lost {lost} steps")
        times = ours.recoveries or [0.0]
        say(f"time to recover: median {statistics.median(times):.1f} s, worst {max(times):.1f} s")
        bound = LONGEST_RECOVERY + seconds
        difference = compare(folder, job.folder / "run", settings, timeout=bound)
        say(f"weights differ by {difference:.1e}; {proof}; seed {seed}")
        # A checkpoint is written while the next steps are taken, so the newest complete one may be
        # the last but one.
        assert max(lost, default=0) <= 2 * INTERVAL
        assert difference <= TOLERANCE
        assert ours.endings[Exit.CODE] <= ours.faults["kill_a_rank"], job.words()
        assert "Traceback" not in job.words(), job.words()
    return Exit.DONE


def say(text: str) -> None:
    print(f"soak: {text}", flush=True)


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="Train while a seeded adversary is at work.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    arguments = parser.parse_args()
    return soak(arguments.seconds, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
