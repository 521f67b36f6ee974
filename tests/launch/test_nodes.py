"""Several nodes, here as several launchers on one machine: rendezvous, waiting, losing a peer."""

import signal
import time
from typing import Any

import psutil
import pytest

from tests.conftest import QUICK
from tests.ranks import free_port

pytestmark = pytest.mark.slow


def node(rank: int, port: int, **added: str) -> dict[str, str]:
    return {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
        "PET_LOCAL_ADDR": "127.0.0.1",
        "TRAINER_COLLECTIVE_TIMEOUT": "60",
    } | added


def test_a_late_master_is_waited_for_and_sigterm_to_one_node_stops_both(start: Any) -> None:
    port = free_port()
    long = QUICK | {"TRAINER_STEPS": "1000000"}
    second = start("-m", "trainer.launch", **node(1, port), **long)
    second.wait_for("waiting for the master")
    first = start("-m", "trainer.launch", **node(0, port), **long)
    first.wait_for('"step": 5,')
    second.process.send_signal(signal.SIGTERM)
    ended, other = first.end(timeout=60), second.end(timeout=60)
    assert (ended.code, other.code) == (143, 143), ended.words
    assert (ended.of("launch")[0]["nodes"], ended.of("launch")[0]["world_size"]) == (2, 2)
    assert ended.of("fault")[0]["step"] == ended.of("step")[-1]["step"]
    assert other.events == []  # one rank speaks for all


def test_elastic_nodes_meet_by_c10d(start: Any) -> None:
    elastic = {
        "PET_NNODES": "2:2",
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}",
        "PET_RDZV_ID": "attempt-1",
        "PET_LOCAL_ADDR": "127.0.0.1",
    }
    nodes = [start("-m", "trainer.launch", **elastic, **QUICK) for _ in range(2)]
    endings = [node.end() for node in nodes]
    assert [ended.code for ended in endings] == [0, 0], endings
    (summary,) = [event for ended in endings for event in ended.of("summary")]
    assert summary["world_size"] == 2


def test_a_master_that_never_comes_is_69_and_named(start: Any) -> None:
    port = free_port()
    ended = start("-m", "trainer.launch", **node(1, port), TRAINER_RENDEZVOUS_TIMEOUT="2").end()
    assert ended.code == 69
    assert f"node 0, did not answer at 127.0.0.1:{port} within 2 s" in ended.words


def test_a_node_that_never_comes_is_69_and_counted(start: Any) -> None:
    port = free_port()
    ended = start("-m", "trainer.launch", **node(0, port), TRAINER_RENDEZVOUS_TIMEOUT="3").end()
    assert ended.code == 69
    assert f"only 1 of 2 nodes came to the rendezvous at 127.0.0.1:{port}" in ended.words


def test_a_port_in_use_is_69_and_named(start: Any) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104
        taken.listen()
        port = taken.getsockname()[1]
        ended = start("-m", "trainer.launch", **node(0, port), **QUICK).end()
    assert ended.code == 69
    assert f"port {port} is in use" in ended.words


def test_sigterm_before_the_peers_are_there_is_a_stop(start: Any) -> None:
    started = start("-m", "trainer.launch", **node(0, free_port()), **QUICK)
    started.wait_for("this node's place")
    time.sleep(6)  # torch is imported by then, and the rendezvous waits in C++
    started.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert started.end(timeout=20).code == 143
    assert time.monotonic() - began < 5


def test_losing_a_node_ends_the_other_with_69_soon(start: Any) -> None:
    port = free_port()
    long = QUICK | {"TRAINER_STEPS": "1000000"}
    first = start("-m", "trainer.launch", **node(0, port), **long)
    second = start("-m", "trainer.launch", **node(1, port), **long)
    first.wait_for('"step": 5,')
    for process in second.family():
        process.send_signal(signal.SIGKILL)
    began = time.monotonic()
    family = first.family()
    ended = first.end(timeout=60)
    assert time.monotonic() - began < 5
    assert ended.code == 69, ended.words
    assert "lost a peer" in ended.words
    assert "Traceback" not in ended.words
    assert psutil.wait_procs(family, timeout=10)[1] == []
