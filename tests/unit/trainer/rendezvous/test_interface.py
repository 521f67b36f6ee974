"""The interface for gloo and NCCL: the one on the route to the master, unless the user chooses."""

from pathlib import Path

import pytest

from trainer.config.contract import resolve
from trainer.rendezvous.interface import choose_interface

LO = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
TWO = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "127.0.0.1"}

CASES: list[tuple[dict[str, str], dict[str, str], str]] = [
    (TWO, LO, "it leads to 127.0.0.1"),
    (TWO | {"PET_MASTER_ADDR": "localhost"}, LO, "it leads to localhost"),
    (TWO | {"PET_LOCAL_ADDR": "127.0.0.1"}, LO, "it has PET_LOCAL_ADDR, 127.0.0.1"),
    (TWO | {"GLOO_SOCKET_IFNAME": "eth7"}, {"NCCL_SOCKET_IFNAME": "=lo"}, "it leads to"),
    (TWO | LO, {}, ""),
    (TWO | {"PET_MASTER_ADDR": "no.such.host.invalid"}, {}, ""),
    (TWO | {"PET_LOCAL_ADDR": "192.0.2.7"}, {}, ""),  # of no interface here
    ({}, {}, ""),  # a single node has no peers
]


@pytest.mark.parametrize(("environment", "expected", "reason"), CASES)
def test_what_is_not_set_is_chosen_with_its_reason(
    environment: dict[str, str], expected: dict[str, str], reason: str
) -> None:
    chosen, given = choose_interface(resolve(environment, devices=lambda: 0), environment)
    assert chosen == expected
    assert given.startswith(reason)


def test_nccls_own_file_counts_as_set(tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    file.write_text("NCCL_SOCKET_IFNAME=ib0\n", encoding="utf-8")
    environment = TWO | {"NCCL_CONF_FILE": str(file)}
    chosen, _ = choose_interface(resolve(environment, devices=lambda: 0), environment)
    assert chosen == {"GLOO_SOCKET_IFNAME": "lo"}
