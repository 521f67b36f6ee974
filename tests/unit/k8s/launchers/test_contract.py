"""Controller and template give every pod of a job its place in one table of ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests.controllers import ADDRESS, UID, given, host
from tests.rendering import (
    CLUSTER,
    LAUNCHERS,
    environment_in_pod,
    environment_in_script,
    job,
    pods,
    render,
)
from trainer.config import contract

SEVERAL = [*CLUSTER, "compose"]  # where a node is a separate pod or container
ELASTIC = [name for name in SEVERAL if name != "trainjob"]


def resolved(environment: dict[str, str]) -> contract.Contract:
    return contract.resolve(environment, devices=lambda: 0)


def sized(nodes: Any, procs: int) -> dict[str, Any]:
    return job(nodes=nodes, procsPerNode=procs, trainer={"globalBatch": 240})


def rank_table(seen: list[contract.Contract]) -> list[tuple[int, int, int]]:
    """Return (world size, node, global rank) of every rank, as torch's agent assigns them."""
    return [
        (one.max_nodes * procs, one.node_rank, one.node_rank * procs + local)
        for one in seen
        for procs in [one.ranks_per_node]
        for local in range(procs)
    ]


@pytest.mark.parametrize("launcher", SEVERAL)
@pytest.mark.parametrize(("nodes", "procs"), [(1, 1), (1, 4), (2, 2), (5, 3)])
def test_every_launcher_makes_the_same_table_of_ranks(
    launcher: str, nodes: int, procs: int
) -> None:
    values = sized(nodes, procs)
    seen = [resolved(given(launcher, values, index)) for index in range(nodes)]
    expected = [
        (nodes * procs, node, node * procs + local)
        for node in range(nodes)
        for local in range(procs)
    ]
    assert rank_table(seen) == expected
    # All meet at node 0, by the host name that its controller gives.
    assert {one.endpoint for one in seen} == {f"{host(launcher, values, 0)}:29500"}
    assert {one.elastic for one in seen} == {False}
    assert {one.shutdown_timeout for one in seen} == {110}
    by_name = launcher in ("pytorchjob", "compose")
    identity = "muster" if nodes == 1 else "a-job" if by_name else UID
    assert all(one.rendezvous_id.endswith(identity) for one in seen)
    assert {one.local_address for one in seen} == {None if launcher == "compose" else ADDRESS}
    with pytest.raises((AssertionError, KeyError)):
        given(launcher, values, nodes)


@pytest.mark.parametrize("launcher", ELASTIC)
def test_every_elastic_launcher_makes_the_same_rendezvous(launcher: str) -> None:
    values = sized({"min": 2, "max": 4}, 2)
    for index in range(4):
        seen = resolved(given(launcher, values, index))
        assert (seen.min_nodes, seen.max_nodes, seen.ranks_per_node) == (2, 4, 2)
        assert (seen.elastic, seen.node_rank, seen.max_restarts) == (True, index, 3)
        assert seen.endpoint == f"{host(launcher, values, 0)}:29500"
        # Of a submission, not of a name. The operator gives a pod no identity of its job, and compose
        # has none: there the endpoint's name, which there is once, tells jobs apart.
        by_name = launcher in ("pytorchjob", "compose")
        assert seen.rendezvous_id.endswith("a-job" if by_name else UID)


@pytest.mark.parametrize("launcher", ["local", "docker"])
@pytest.mark.parametrize("nodes", [5, {"min": 2, "max": 5}])
def test_one_machine_holds_the_ranks_of_all_nodes(
    launcher: str, nodes: Any, tmp_path: Path
) -> None:
    seen = resolved(environment_in_script(sized(nodes, 2), launcher, tmp_path))
    assert (seen.ranks_per_node, seen.max_nodes, seen.node_rank) == (10, 1, 0)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_preflight_looks_for_the_accelerators_that_are_asked_for(
    launcher: str, tmp_path: Path
) -> None:
    """A node of a cluster has its own; a container on this machine has those of all nodes."""
    values = job(nodes=2, resources={"gpu": 4}, trainer={"globalBatch": 16})
    expected = {"docker": "8", "local": None}.get(launcher, "4")
    for changes, wanted in (({}, expected), ({"devices": 1}, "1"), ({"devices": 0}, "0")):
        asked = values | {"trainer": {**values["trainer"], **changes}}
        assert environment(asked, launcher, tmp_path).get("TRAINER_DEVICES") == wanted
    assert "TRAINER_DEVICES" not in environment(job(), launcher, tmp_path)


def environment(values: dict[str, Any], launcher: str, folder: Path) -> dict[str, str]:
    if launcher in CLUSTER:
        return environment_in_pod(pods(render(values, launcher))[0])
    return environment_in_script(values, launcher, folder)
