"""The contract of a container: torchrun's PET_* variables, which say what this node is in the job.

Every launcher sets these variables, so `torchrun -m trainer` and `python -m trainer.launch` both work
with every launcher. Imports no torch.
"""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainer.config.exits import Exit, Fault

DEFAULT_PORT = 29500
_LAST_PORT = 65535


@dataclass(frozen=True)
class Contract:
    """What this node is in the job. `port` 0 is any free port, for a job of one node.

    In a job of fixed size `node_rank` is set, and `address` is that of node 0. In an elastic job, of
    `min_nodes` to `max_nodes`, the rendezvous assigns the node's rank. `rendezvous_id` is unique per
    attempt.
    """

    min_nodes: int
    max_nodes: int
    ranks_per_node: int
    node_rank: int
    address: str
    port: int
    elastic: bool
    rendezvous_id: str
    max_restarts: int
    local_address: str | None
    shutdown_timeout: int

    @property
    def endpoint(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


def resolve(environment: Mapping[str, str], *, devices: Callable[[], int]) -> Contract:
    """Read the PET_* variables; `devices` counts accelerators when PET_NPROC_PER_NODE is not set.

    Raises Fault(64) with the variable that is missing or wrong.
    """
    low, high = _nodes(environment)
    backend = environment.get("PET_RDZV_BACKEND") or "static"
    if backend not in ("static", "c10d"):
        raise Fault(Exit.CONFIG, f"PET_RDZV_BACKEND={backend!r}: must be static or c10d")
    elastic = backend == "c10d"
    if low != high and not elastic:
        raise Fault(
            Exit.CONFIG,
            f"PET_NNODES={environment['PET_NNODES']!r}: a range needs PET_RDZV_BACKEND=c10d",
        )
    address, port = _endpoint(environment, elastic=elastic, nodes=high)
    if high > 1 and not elastic and not environment.get("PET_NODE_RANK"):
        raise Fault(Exit.CONFIG, f"PET_NODE_RANK is not set, but there are {high} nodes")
    rank = _integer(environment, "PET_NODE_RANK", default=0, least=0)
    if rank >= high:
        raise Fault(Exit.CONFIG, f"PET_NODE_RANK={rank}: must be below PET_NNODES, {high}")
    if environment.get("PET_NPROC_PER_NODE", "") in ("", "auto", "gpu"):
        # Not the host's core count, as torchrun's auto does on a CPU (kubeflow/trainer 2407).
        ranks_per_node = devices() or 1
    else:
        ranks_per_node = _integer(environment, "PET_NPROC_PER_NODE", default=1, least=1)
    return Contract(
        min_nodes=low,
        max_nodes=high,
        ranks_per_node=ranks_per_node,
        node_rank=rank,
        address=address,
        port=port,
        elastic=elastic,
        rendezvous_id=environment.get("PET_RDZV_ID") or "muster",
        max_restarts=_integer(environment, "PET_MAX_RESTARTS", default=0, least=0),
        local_address=environment.get("PET_LOCAL_ADDR") or None,
        shutdown_timeout=_integer(environment, "PET_SHUTDOWN_TIMEOUT", default=30, least=1),
    )


def _nodes(environment: Mapping[str, str]) -> tuple[int, int]:
    text = environment.get("PET_NNODES") or "1"
    low, colon, high = text.partition(":")
    if low.isdecimal() and (high.isdecimal() or not colon):
        low_count, high_count = int(low), int(high or low)
        if 1 <= low_count <= high_count:
            return low_count, high_count
    raise Fault(
        Exit.CONFIG, f"PET_NNODES={text!r}: must be a number of nodes, or MIN:MAX, at least 1"
    )


def is_elastic(environment: Mapping[str, str]) -> bool:
    """Return whether the number of nodes may change: PET_NNODES is a range. Raises Fault(64)."""
    low, high = _nodes(environment)
    return low != high


def _endpoint(environment: Mapping[str, str], *, elastic: bool, nodes: int) -> tuple[str, int]:
    if elastic:
        text = environment.get("PET_RDZV_ENDPOINT", "")
        address, _, port = text.rpartition(":")
        if not address or not (port.isdecimal() and int(nodes > 1) <= int(port) <= _LAST_PORT):
            raise Fault(
                Exit.CONFIG,
                f"PET_RDZV_ENDPOINT={text!r}: must be HOST:PORT when PET_RDZV_BACKEND is c10d",
            )
        return _host(address, "PET_RDZV_ENDPOINT"), int(port)
    address = _host(environment.get("PET_MASTER_ADDR") or "", "PET_MASTER_ADDR")
    if not address and nodes > 1:
        raise Fault(Exit.CONFIG, f"PET_MASTER_ADDR is not set, but there are {nodes} nodes")
    default, least = (DEFAULT_PORT, 1) if nodes > 1 else (0, 0)  # several nodes must use one port
    number = _integer(environment, "PET_MASTER_PORT", default=default, least=least, most=_LAST_PORT)
    return address or "127.0.0.1", number


def _host(address: str, variable: str) -> str:
    """Return a name or address, without the brackets of an IPv6 address. Raises Fault(64)."""
    address = address.removeprefix("[").removesuffix("]")
    try:
        address.encode("idna")  # as getaddrinfo does
        if ":" in address:  # or it is HOST:PORT, which never resolves
            ipaddress.IPv6Address(address)
    except ValueError:
        raise Fault(
            Exit.CONFIG, f"{variable}={address!r}: must be a host's name or an IP address"
        ) from None
    return address


def _integer(
    environment: Mapping[str, str], name: str, *, default: int, least: int, most: int | None = None
) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        and_most = f", at most {most}" if most is not None else ""
        raise Fault(
            Exit.CONFIG, f"{name}={text!r}: must be a whole number, at least {least}{and_most}"
        )
    return int(text)


def table(contract: Contract) -> str:
    """Return the contract as a table for the log."""
    least, most = contract.min_nodes, contract.max_nodes
    rows = {
        "nodes": str(most) if least == most else f"{least} to {most}",
        "ranks per node": str(contract.ranks_per_node),
        "this node": "decided by the rendezvous" if contract.elastic else str(contract.node_rank),
        "rendezvous": f"{'c10d' if contract.elastic else 'static'} at {contract.endpoint}",
        "in-place restarts": str(contract.max_restarts),
        "seconds to stop": str(contract.shutdown_timeout),
    }
    return "\n".join(f"  {name:18}{value}" for name, value in rows.items())
