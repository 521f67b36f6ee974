"""Several nodes, as several launchers on one machine: rendezvous, waiting, a lost peer."""

import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import QUICK, ROOT, Ended
from tests.ranks import free_port
from trainer.config.contract import resolve
from trainer.config.exits import Exit
from trainer.config.identity import MAY_DIFFER_BY_NODE
from trainer.config.settings import Settings
from trainer.rendezvous.client import RendezvousClient
from trainer.rendezvous.connection import connect

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


def elastic(nodes: str, port: int) -> dict[str, str]:
    return {
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
        "PET_RDZV_ID": "attempt-1",
        "PET_LOCAL_ADDR": "127.0.0.1",
    }


def test_a_late_master_is_waited_for_and_sigterm_to_one_node_stops_both(start: Any) -> None:
    port = free_port()
    long = QUICK | {"TRAINER_STEPS": "1000000"}
    second = start("-m", "trainer.launch", **node(1, port), **long)
    second.wait_for("waiting for the rendezvous server")
    first = start("-m", "trainer.launch", **node(0, port), **long)
    first.wait_for('"step": 5,')
    second.process.send_signal(signal.SIGTERM)
    ended, other = first.end(timeout=60), second.end(timeout=60)
    assert (ended.code, other.code) == (143, 143), ended.stderr
    assert (ended.of("launch")[0]["nodes"], ended.of("launch")[0]["world_size"]) == (2, 2)
    assert ended.of("fault")[0]["step"] == ended.of("step")[-1]["step"]
    assert other.events == []  # one rank is enough


def test_nodes_with_other_settings_are_refused_except_for_places(start: Any) -> None:
    assert Settings.model_fields.keys() > MAY_DIFFER_BY_NODE
    port = free_port()
    first = start("-m", "trainer.launch", **node(0, port), **QUICK)
    others = QUICK | {"TRAINER_LR": "0.5", "TRAINER_DATA": "/", "TRAINER_WORKERS": "1"}
    second = start("-m", "trainer.launch", **node(1, port), **others)
    for ended in (first.end(), second.end()):
        assert ended.code == 64, ended.stderr
        assert "rank 1: TRAINER_LR 0.5, rank 0 has 0.03; all nodes need the same" in ended.stderr


def test_elastic_nodes_meet_by_c10d(start: Any) -> None:
    variables = elastic("2:2", free_port()) | QUICK
    nodes = [start("-m", "trainer.launch", **variables) for _ in range(2)]
    endings = [node.end() for node in nodes]
    assert [ended.code for ended in endings] == [0, 0], endings
    (summary,) = [event for ended in endings for event in ended.of("summary")]
    assert summary["world_size"] == 2


def test_a_node_that_is_lost_as_the_round_starts_is_not_waited_for(start: Any) -> None:
    """torch's agents would wait five minutes for its entry in their store."""
    port = free_port()
    first = start("-m", "trainer.launch", **(elastic("1:2", port) | QUICK), TRAINER_LAST_CALL="60")
    place = resolve(elastic("1:2", port), devices=lambda: 0)  # no PET_NODE_RANK, as under torchrun
    lost = RendezvousClient(
        place,
        lambda: connect("127.0.0.1", port),
        secret="",
        peer_timeout=3,
        has_store=True,
    )
    deadline = time.monotonic() + 60
    lost.start(deadline=deadline)
    found = lost.next_round(clean=True, open_port=lambda: 0, deadline=deadline, turn=lambda: None)
    assert found.world_size == 2
    lost.leave(Exit.CODE)
    ended = first.end(timeout=30)
    assert ended.code == 0, ended.stderr
    assert "the node at 127.0.0.1 is gone; starting the next round" in ended.stderr
    assert ended.of("launch")[0]["world_size"] == 1


def test_a_master_that_never_comes_is_69_and_named(start: Any) -> None:
    port = free_port()
    ended = start("-m", "trainer.launch", **node(1, port), TRAINER_RENDEZVOUS_TIMEOUT="2").end()
    assert ended.code == 69
    problem = f"could not join the master, node 0, at 127.0.0.1:{port} in time"
    assert f"{problem} (TRAINER_RENDEZVOUS_TIMEOUT): [Errno 111]" in ended.stderr


def test_a_node_that_never_comes_is_69_and_70_once_that_repeats(start: Any, tmp_path: Path) -> None:
    variables = {"TRAINER_RENDEZVOUS_TIMEOUT": "1", "TRAINER_PEER_LOSSES": "1"}

    def attempt() -> Ended:
        port = free_port()
        place = node(0, port, TRAINER_OUT=str(tmp_path / "run"))
        ended: Ended = start("-m", "trainer.launch", **place, **variables).end()
        assert f"only 1 of 2 nodes joined the rendezvous at 127.0.0.1:{port}" in ended.stderr
        return ended

    assert attempt().code == 69
    failed = attempt()
    assert failed.code == 70
    assert "in a row without a new checkpoint: 2, more than TRAINER_PEER_LOSSES=1:" in failed.stderr
    saved = start("-m", "trainer.launch", TRAINER_OUT=str(tmp_path / "run"), **QUICK).end()
    assert saved.of("checkpoint"), saved.stderr
    assert attempt().code == 69


def test_an_elastic_job_whose_ranks_lose_each_other_repeatedly_is_70(
    start: Any, tmp_path: Path
) -> None:
    """The nodes see each other, so each round would start and end like the round before."""
    variables = elastic("2:2", free_port()) | {
        "TRAINER_TASK": "tests.faults.tasks:Parted",
        "TRAINER_OUT": str(tmp_path / "run"),
        "TRAINER_PEER_LOSSES": "0",
        "PYTHONPATH": str(ROOT),
    }
    nodes = [start("-m", "trainer.launch", **(QUICK | variables)) for _ in range(2)]
    endings = [node.end() for node in nodes]
    assert sorted(ended.code for ended in endings) == [69, 70], [e.stderr for e in endings]
    (server,) = [ended for ended in endings if ended.code == 70]
    assert "in a row without a new checkpoint: 1, more than TRAINER_PEER_LOSSES=0:" in server.stderr


def test_the_failed_node_is_the_one_with_70_however_long_its_end_takes(start: Any) -> None:
    port = free_port()
    task = QUICK | {"TRAINER_TASK": "tests.faults.tasks:Lingering"}
    peer, culprit = (start("-m", "trainer.launch", **node(rank, port), **task) for rank in (0, 1))
    assert (culprit.end().code, peer.end().code) == (70, 69), culprit.end().stderr
    assert "enough of it" in culprit.end().stderr


def test_a_port_in_use_is_69_and_named(start: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104
        taken.listen()
        port = taken.getsockname()[1]
        ended = start("-m", "trainer.launch", **node(0, port), **QUICK).end()
    assert ended.code == 69
    assert f"port {port} is in use" in ended.stderr


def wait_until_served(port: int) -> None:
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    pytest.fail(f"nothing listens at port {port}")


def test_sigterm_before_the_peers_are_there_is_a_stop(start: Any) -> None:
    port, began = free_port(), time.monotonic()
    started = start("-m", "trainer.launch", **node(0, port), **QUICK)
    wait_until_served(port)  # torch is imported by then
    stopped = time.monotonic()
    started.process.send_signal(signal.SIGTERM)
    assert started.end(timeout=20).code == 143
    # Less than it would wait for peers. Other processes may slow either of the two processes.
    assert time.monotonic() - stopped < 5 * (stopped - began)


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
    assert ended.code == 69, ended.stderr
    assert "lost a peer" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert psutil.wait_procs(family, timeout=10)[1] == []
