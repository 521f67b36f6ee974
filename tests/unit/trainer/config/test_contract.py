"""The PET_* contract: the meaning of each launcher's environment, and what is refused."""

import pytest

from trainer.config.contract import Contract, resolve, table
from trainer.config.exits import Exit, Fault

NODE_1_OF_2 = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-0.job",
    "PET_MASTER_PORT": "29500",
}
ELASTIC = {
    "PET_NNODES": "2:8",
    "PET_NPROC_PER_NODE": "1",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "job-0.job:29500",
    "PET_RDZV_ID": "job-1",
    "PET_MAX_RESTARTS": "3",
}


def place(environment: dict[str, str], devices: int = 0) -> Contract:
    return resolve(environment, devices=lambda: devices)


def test_a_fixed_size() -> None:
    contract = place(NODE_1_OF_2)
    assert (contract.max_nodes, contract.ranks_per_node, contract.node_rank) == (2, 8, 1)
    assert contract.endpoint == "job-0.job:29500"
    assert not contract.elastic


def test_elastic() -> None:
    contract = place(ELASTIC)
    assert (contract.min_nodes, contract.max_nodes, contract.elastic) == (2, 8, True)
    assert (contract.endpoint, contract.rendezvous_id) == ("job-0.job:29500", "job-1")
    assert contract.max_restarts == 3
    assert "2 to 8" in table(contract)


@pytest.mark.parametrize(("devices", "ranks"), [(0, 1), (8, 8)])
@pytest.mark.parametrize("asked", ["", "auto", "gpu"])
def test_the_default_is_a_rank_per_gpu_or_one(asked: str, devices: int, ranks: int) -> None:
    contract = place({"PET_NPROC_PER_NODE": asked}, devices)
    assert contract.ranks_per_node == ranks
    assert contract.port == 0  # any free one


def test_the_operators_own_rank_and_world_size_are_not_read() -> None:
    # kubeflow/trainer 1790, 1947: nodes in one version, ranks in another
    assert place(NODE_1_OF_2 | {"WORLD_SIZE": "5", "RANK": "4"}) == place(NODE_1_OF_2)


def test_the_brackets_of_an_ipv6_address_are_left_out() -> None:
    assert place(ELASTIC | {"PET_RDZV_ENDPOINT": "[::1]:29500"}).address == "::1"
    contract = place(NODE_1_OF_2 | {"PET_MASTER_ADDR": "[::1]"})
    assert (contract.address, contract.endpoint) == ("::1", "[::1]:29500")


REFUSED = [
    ({"PET_NNODES": "0"}, "PET_NNODES='0': must be a number of nodes"),
    ({"PET_NNODES": "8:2"}, "PET_NNODES='8:2': must be"),
    ({"PET_NNODES": "two"}, "PET_NNODES='two': must be"),
    ({"PET_NNODES": "1:2"}, "a range needs PET_RDZV_BACKEND=c10d"),
    ({"PET_NPROC_PER_NODE": "cpu"}, "PET_NPROC_PER_NODE='cpu': must be a whole number"),
    ({"PET_NPROC_PER_NODE": "0"}, "PET_NPROC_PER_NODE='0': must be a whole number, at least 1"),
    ({"PET_NNODES": "2"}, "PET_MASTER_ADDR is not set, but there are 2 nodes"),
    (NODE_1_OF_2 | {"PET_NODE_RANK": ""}, "PET_NODE_RANK is not set, but there are 2 nodes"),
    (NODE_1_OF_2 | {"PET_NODE_RANK": "2"}, "PET_NODE_RANK=2: must be below PET_NNODES, 2"),
    (NODE_1_OF_2 | {"PET_MASTER_PORT": "http"}, "PET_MASTER_PORT='http': must be"),
    # each node would take another
    (
        NODE_1_OF_2 | {"PET_MASTER_PORT": "0"},
        "PET_MASTER_PORT='0': must be a whole number, at least 1",
    ),
    (
        NODE_1_OF_2 | {"PET_MASTER_PORT": "65536"},
        "PET_MASTER_PORT='65536': must be a whole number, ",
    ),
    (ELASTIC | {"PET_RDZV_ENDPOINT": "job"}, "PET_RDZV_ENDPOINT='job': must be HOST:PORT"),
    (ELASTIC | {"PET_RDZV_ENDPOINT": "job:0"}, "PET_RDZV_ENDPOINT='job:0': must be HOST:PORT"),
    (ELASTIC | {"PET_RDZV_BACKEND": "etcd"}, "PET_RDZV_BACKEND='etcd': must be static or c10d"),
    (ELASTIC | {"PET_MAX_RESTARTS": "-1"}, "PET_MAX_RESTARTS='-1': must be"),
    (NODE_1_OF_2 | {"PET_MASTER_ADDR": "a..b"}, "PET_MASTER_ADDR='a..b': must be a host's name or"),
    (NODE_1_OF_2 | {"PET_MASTER_ADDR": "a:29500"}, "PET_MASTER_ADDR='a:29500': must be a host"),
    (ELASTIC | {"PET_RDZV_ENDPOINT": "a..b:1"}, "PET_RDZV_ENDPOINT='a..b': must be a host's name"),
    ({"PET_SHUTDOWN_TIMEOUT": "0"}, "PET_SHUTDOWN_TIMEOUT='0': must be"),
]


@pytest.mark.parametrize(("environment", "message"), REFUSED)
def test_refusals(environment: dict[str, str], message: str) -> None:
    with pytest.raises(Fault) as caught:
        place(environment)
    assert caught.value.code == Exit.CONFIG
    assert message in str(caught.value)
