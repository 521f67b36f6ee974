"""A soak: an elastic job on three hosts trains while an adversary with a seed injects faults.

At the end its weights must equal those of an undisturbed run, and its ledger must show that each
sample of each epoch was used once. Where network namespaces are not permitted the hosts are process
groups on the loopback interface, and links are not cut.

    make soak SECONDS=600 SEED=7
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.faults.adversary import disturb
from tests.faults.cluster import Job
from tests.faults.controller import LONGEST_RECOVERY, Controlled, report
from tests.faults.hosts import Host, Loopback, network, why_not
from tests.faults.lost import returns
from tests.ranks import run_ranks, weights
from trainer.config.exits import Exit
from trainer.engine import ledger

INTERVAL = 16  # steps between checkpoints
PACE = 0.05  # seconds a step while the adversary is at work
STEPS_PER_EPOCH = 128
STEPS_A_SECOND = 8  # more than a job with faults can take; the remaining steps are undisturbed
TOLERANCE = 1e-8


def compare(run: Path, whole: Path) -> float:
    """Return the largest relative difference between a tensor and that of the undisturbed run."""
    ours, theirs = weights(run), weights(whole)
    return max(float((ours[n] - theirs[n]).norm() / theirs[n].norm()) for n in theirs)


@contextlib.contextmanager
def three_hosts() -> Iterator[tuple[list[Host], bool]]:
    """Yield the hosts, and whether they have links that can be cut."""
    if reason := why_not():
        report(f"no network namespaces, so processes on one host and no cut links: {reason}")
        hosts: Any = [Loopback(number) for number in range(3)]  # each is used like a Host
        try:
            yield hosts, False
        finally:
            for host in hosts:
                host.remove()
        return
    with network() as net:
        yield [net.host() for _ in range(3)], True


def soak(seconds: float, seed: int) -> int:
    """Run and return the exit code. Raises AssertionError for a broken promise."""
    epochs = max(1, round(seconds * STEPS_A_SECOND / STEPS_PER_EPOCH))
    settings = {
        "epochs": str(epochs),
        "checkpoint_steps": str(INTERVAL),
        "precision": "fp64",
        "eval_steps": "0",
    }
    variables = {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
    variables |= {"TRAINER_LEDGER": "true", "TRAINER_LAST_CALL": "2"}
    report(f"seed {seed}, {seconds:.0f} s, {epochs} epochs of {STEPS_PER_EPOCH} steps")
    with (
        tempfile.TemporaryDirectory(prefix="muster-soak-") as name,
        three_hosts() as (hosts, links),
        contextlib.ExitStack() as stack,
    ):
        folder, bound = Path(name), LONGEST_RECOVERY + seconds
        once = settings | {"task": "synthetic", "checkpoint_steps": "0"}
        beside = stack.enter_context(ThreadPoolExecutor())  # the undisturbed run, in parallel
        whole = beside.submit(run_ranks, 1, folder / "whole", timeout=bound, **once)
        job = Job(folder / "job", hosts, variables, pace=PACE, elastic="1:3", attempts=1)
        ours = stack.enter_context(Controlled(job, random.Random(seed)).explaining())  # noqa: S311
        disturb(ours, seconds, interval=INTERVAL, links=links)
        ours.wanted = {0, 1, 2}
        job.set_pace(0)
        began = time.monotonic()
        while not ours.finished or ours.running or ours.due:
            ours.tick()
            assert time.monotonic() - began < bound, "does not end"
            time.sleep(0.1)
        proof = ledger.check(ledger.read(job.folder / "run"))
        gone_back = returns(job.events)
        for fault, count in sorted(ours.faults.items()):
            report(f"{count:4d} x {fault}")
        lost = [went.lost for went in gone_back]
        late = [went.in_flight(INTERVAL) for went in gone_back if went.lost > INTERVAL]
        report(f"exit codes {dict(ours.endings)}; gone back {len(lost)} times, lost {lost} steps")
        report(
            f"steps lost at one return: at most {max(lost, default=0)} (interval {INTERVAL}); more than "
            f"the interval {len(late)} times, by the {late} steps taken while a save was being written"
        )
        times = ours.recoveries or [0.0]
        report(
            f"time to recover: median {statistics.median(times):.1f} s, worst {max(times):.1f} s"
        )
        whole.result()
        difference = compare(job.folder / "run", folder / "whole")
        report(f"weights differ by {difference:.1e}; {proof}; seed {seed}")
        # A checkpoint is written while the next steps are taken. Only these may be lost in addition to
        # those of the interval.
        assert not [went for went in gone_back if went.beyond(INTERVAL)]
        assert difference <= TOLERANCE
        killed = ours.faults["kill_a_rank"] + ours.faults["kill_a_fork_server"]
        assert ours.endings[Exit.CODE] <= killed, "too many 70"
        assert "Traceback" not in job.stderr()
    return Exit.DONE


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="Train while a seeded adversary is at work.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    arguments = parser.parse_args()
    return soak(arguments.seconds, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
