"""Strangers attack the rendezvous while a job starts, runs and recovers: the job is not affected."""

import signal
from typing import Any

import pytest

from tests.conftest import Ended
from tests.launch.test_nodes import elastic, node, wait_until_served
from tests.ranks import free_port

pytestmark = pytest.mark.slow

STEPS = 300
JOB = {
    "TRAINER_TASK": "synthetic",
    "TRAINER_STEPS": str(STEPS),
    "TRAINER_LOG_STEPS": "1",
    "TRAINER_CHECKPOINT_STEPS": "50",
    "TRAINER_PREFLIGHT": "off",
    "PET_MAX_RESTARTS": "1",
    "MUSTER_RENDEZVOUS_SECRET": "secret",
    "PET_RDZV_ID": "job",
}


def train(start: Any, kind: str, *, attacked: bool, killed: bool) -> list[Ended]:
    """Run two nodes to their end, optionally under attack or with a rank that is killed."""
    port = free_port()
    places = [elastic("2:2", port) if kind == "elastic" else node(n, port) for n in range(2)]
    first = start("-m", "trainer.launch", **(places[0] | JOB))
    wait_until_served(port)
    if attacked:
        attack = start("-m", "tests.launch.strangers", "127.0.0.1", str(port), "8")
    second = start("-m", "trainer.launch", **(places[1] | JOB))
    nodes = [first, second]
    if killed:
        first.wait_for('"step": 120,')
        (rank,) = [one for one in second.family() if one.name().startswith("rank ")]
        rank.send_signal(signal.SIGKILL)
    endings = [one.end(timeout=120) for one in nodes]
    if attacked:
        assert attack.process.wait(120) == 0, attack.read(attack.stderr)
        said = attack.read(attack.out)
        assert "huge_numbers" in said, said
        assert "no_line_end" in said, said
    return endings


@pytest.fixture(scope="module")
def losses() -> dict[int, float]:
    """The results of the undisturbed runs, by kind."""
    return {}


@pytest.mark.parametrize(("kind", "killed"), [("fixed", False), ("elastic", True)])
def test_a_job_fares_as_without_them(
    kind: str,
    killed: bool,  # noqa: FBT001
    start: Any,
    losses: dict[int, float],
) -> None:
    if not losses:
        undisturbed = train(start, "fixed", attacked=False, killed=False)
        assert [ended.code for ended in undisturbed] == [0, 0]
        losses.update(undisturbed[0].losses)
    endings = train(start, kind, attacked=True, killed=killed)
    codes = [ended.code for ended in endings]
    said = "".join(ended.stderr for ended in endings)
    assert codes == [0, 0], said
    found: dict[int, float] = {}
    for ended in endings:
        found |= ended.losses
    assert found == losses
    assert "\x1b" not in said
    assert "owned" not in said
