"""Network and clock faults: late, slow, lossy or cut links, a port still in use, clocks that differ."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Started, losses
from tests.faults.cluster import Job
from tests.faults.hosts import Network, Wire, network, why_not
from tests.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

TRAINED = {"steps": "15", "checkpoint_steps": "10", "eval_steps": "0"}
SETTINGS = {f"TRAINER_{name.upper()}": value for name, value in TRAINED.items()}


LATE = 60  # seconds by which the master starts later than the worker


@dataclass
class Early:
    """A worker whose master starts at the monotonic time `late`."""

    job: Job
    worker: Started
    late: float


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network() as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def early(net: Network, tmp_path_factory: Any) -> Early:
    """Start the worker before the other tests, so that it waits while they run."""
    # 20 ms round trip, one frame in a hundred lost
    hosts = [net.host(), net.host(Wire(delay=0.01, loss=0.01))]
    job = Job(tmp_path_factory.mktemp("late") / "job", hosts, SETTINGS, pace=0.1)
    worker = job.start_node(hosts[1], PET_LOCAL_ADDR="")
    worker.wait_for("waiting for the rendezvous server")
    return Early(job, worker, time.monotonic() + LATE)


def test_a_former_attempt_is_recognised_and_outlived(net: Network, tmp_path: Path) -> None:
    hosts = [net.host(), net.host()]
    job = Job(tmp_path / "job", hosts, SETTINGS, pace=0)
    job.attempts = 1
    former = job.start_node(hosts[0])  # it does not know that its node 1 is gone
    job.attempts = 2
    second = job.start_node(hosts[1])
    second.wait_for("another job, attempt, or secret")
    first = job.start_node(hosts[0])
    assert first.end(timeout=30).code == 69
    assert "port 29500 is in use on this machine" in first.read(first.stderr)
    former.process.kill()
    former.process.wait()
    job.nodes = [job.start_node(hosts[0]), second]
    assert job.codes(within=60) == [0, 0], job.stderr()


def test_a_name_that_also_resolves_to_a_former_master_costs_no_wait(
    net: Network, tmp_path: Path
) -> None:
    """Like the name of a pod that has just been replaced."""
    hosts = [net.host(), net.host()]
    for host in hosts:
        host.knows("master", "10.77.77.77", hosts[0].address)
    job = Job(tmp_path / "job", hosts, SETTINGS, pace=0)
    job.start(PET_MASTER_ADDR="master")
    assert job.codes(within=60) == [0, 0], job.stderr()
    (launch,) = [event for event in job.events if event["event"] == "launch"]
    assert launch["master"].rpartition(":")[0] == hosts[0].address  # its only address
    assert "No route to host" not in job.stderr()  # no wait for the other address


# Set Python's wall clock an hour ahead.
AHEAD = """
import datetime, time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + 3600
time.time_ns = lambda: _time_ns() + 3600 * 10**9
class Ahead(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(hours=1)
datetime.datetime = Ahead
"""


def test_clocks_an_hour_apart_change_nothing_but_are_mentioned(
    net: Network, tmp_path: Path
) -> None:
    """With torch's own rendezvous, the node whose clock is ahead removes the other node as dead."""
    hosts = [net.host(), net.host()]
    job = Job(tmp_path / "job", hosts, SETTINGS, pace=0, elastic="2:3")
    ahead = tmp_path / "ahead"
    ahead.mkdir()
    (ahead / "sitecustomize.py").write_text(AHEAD, encoding="utf-8")
    job.start_one(hosts[0])
    job.start_one(hosts[1], PYTHONPATH=f"{ahead}:{job.folder}:{ROOT}")
    assert job.codes(within=60) == [0, 0], job.stderr()
    assert [e["world_size"] for e in job.events if e["event"] == "launch"] == [2]
    found = re.search(r"([\d.]+) s apart, to within ([\d.]+) s", job.stderr())
    assert found is not None, job.stderr()  # preflight says by how much
    apart, within = map(float, found.groups())
    assert abs(apart - 3600) <= within + 0.001


def test_a_late_master_and_a_slow_lossy_and_briefly_cut_link_cost_time_only(
    early: Early, tmp_path: Path
) -> None:
    """Each node also finds the interface to the other node; its own name resolves to another one."""
    job, second = early.job, early.worker
    whole = run_ranks(2, tmp_path / "whole", task="synthetic", **TRAINED)  # meanwhile
    time.sleep(max(0, early.late - time.monotonic()))
    assert second.process.poll() is None
    job.nodes = [job.start_node(job.hosts[0], PET_LOCAL_ADDR=""), second]
    job.wait_for_step(5)
    job.hosts[1].cut()
    time.sleep(1)  # of the 3 s after which a node counts as lost
    job.hosts[1].mend()
    assert job.codes(within=90) == [0, 0], job.stderr()
    assert losses(job.events) == losses(whole)  # bit by bit
    chosen = f"NCCL_SOCKET_IFNAME==eth0: it leads to {job.hosts[0].address}"
    assert job.stderr().count(chosen) == 2
