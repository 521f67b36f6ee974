"""A job of fixed size on several hosts: lost nodes are noticed in time, and training continues."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import losses, wait_for
from tests.faults.cluster import Job
from tests.faults.hosts import Network, network, why_not
from tests.faults.lost import returns
from tests.ranks import is_there, run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # six starts of two nodes
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

STEPS = 150
INTERVAL = 5  # steps between checkpoints
TRAINED = {"steps": str(STEPS), "checkpoint_steps": str(INTERVAL), "eval_steps": "0"}
SETTINGS = {f"TRAINER_{name.upper()}": value for name, value in TRAINED.items()}
BOUND = 5  # seconds for an agent to end once it has lost a peer


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as found:
        yield found


def kill_a_rank(job: Job) -> None:
    job.rank_of(1).kill()


def kill_an_agent(job: Job) -> None:
    orphan = job.rank_of(1)
    job.nodes[1].process.kill()
    wait_for(
        lambda: not is_there(orphan.pid),
        seconds=2,
        seen=lambda: "the rank of a killed agent lives on",
    )


def kill_the_masters_agent(job: Job) -> None:
    job.nodes[0].process.kill()


def kill_a_host(job: Job) -> None:
    job.hosts[1].die()
    job.hosts[1].mend()


def cut_a_link(job: Job) -> None:
    """With two hosts it does not matter which link is cut: each host is silent to the other."""
    job.hosts[1].cut()


# a fault during the run, and the exit codes of node 0 and node 1
FAULTS: list[tuple[Callable[[Job], None], list[int]]] = [
    (kill_a_rank, [69, 70]),
    (kill_an_agent, [69, -signal.SIGKILL]),
    (kill_the_masters_agent, [-signal.SIGKILL, 69]),
    (kill_a_host, [69, -signal.SIGKILL]),
    (cut_a_link, [69, 69]),
]


def test_after_any_loss_the_rest_end_soon_and_all_continue_together(
    net: Network, tmp_path: Path, in_memory: Path
) -> None:
    whole = run_ranks(2, tmp_path / "whole", task="synthetic", **TRAINED)
    job = Job(in_memory / "job", [net.host(), net.host()], SETTINGS)
    saved = 0
    for fault, codes in FAULTS:
        job.start()
        job.wait_for_step(saved + 3 * INTERVAL)
        fault(job)
        assert job.codes(within=BOUND) == codes, (fault, job.stderr())
        assert "Traceback" not in job.stderr()
        job.hosts[0].mend()
        job.hosts[1].mend()
        leftovers = [host.processes() for host in job.hosts]
        assert leftovers == [[], []], "processes live on"
        saved = max(e["step"] for e in job.events if e["event"] == "checkpoint")
    job.set_pace(0)
    job.start()
    assert job.codes(within=60) == [0, 0], job.stderr()
    assert losses(job.events) == losses(whole)  # bit by bit
    resumed = [event["step"] for event in job.events if event.get("action") == "resumed"]
    assert len(resumed) == len(FAULTS)
    assert resumed == sorted(set(resumed))
    assert not [went for went in returns(job.events) if went.beyond(INTERVAL)]
    complete = {e["step"] for e in job.events if e.get("action") in ("saved", "resumed")}
    assert complete >= set(range(INTERVAL, STEPS + 1, INTERVAL)), "a save was left out"
