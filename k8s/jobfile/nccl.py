"""The job file's `nccl`: named presets of variables, and what a cluster adds to them.

render.py job.yaml --set 'nccl={presets: [roce, debug], socketInterface: eth0}' --plan
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from k8s.base.model import DataKey, Model, Subdomain, Variable
from k8s.base.names import matching

# Where the topology file is mounted.
TOPOLOGY = "/etc/nccl"

# What a name stands for. Where NCCL's own choice is good, a preset leaves it.
PRESETS: dict[str, dict[str, str]] = {
    # No RDMA; more sockets, since one does not fill a fast link.
    "tcp": {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
    "infiniband": {
        "NCCL_IB_HCA": "mlx5",
        "NCCL_IB_PCI_RELAXED_ORDERING": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    },
    # The third address of a port is the one of RoCE v2 over IPv4.
    "roce": {"NCCL_IB_HCA": "mlx5", "NCCL_IB_GID_INDEX": "3"},
    # A DataLoader's fork runs out of memory with the provider's huge pages.
    "efa": {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"},
    # For fabrics that stall and recover: 4.096 us x 2^22 a try.
    "patient": {
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IB_RETRY_CNT": "13",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800",
    },
    "debug": {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    },
}


class TopologyFile(Model):
    """NCCL's description of a machine, in a ConfigMap."""

    config_map: Subdomain = Field(description="name of the ConfigMap")
    key: DataKey = Field("topology.xml", description="the key in it")


_nccl_variable = matching(
    r"(NCCL|TORCH_NCCL|TORCH_FR|FI|UCX|CUDA|RCCL)_\w*",
    "not a variable of NCCL, libfabric or UCX; put it in env",
)


class Nccl(Model):
    """How GPUs of different nodes communicate. `env` wins over these."""

    presets: list[Literal["tcp", "infiniband", "roce", "efa", "patient", "debug"]] = Field(
        [], description="named sets of variables, listed in k8s/jobfile/nccl.py; a later one wins"
    )
    socket_interface: str | None = Field(
        None,
        pattern=r"^[\^=]?[A-Za-z0-9][-._A-Za-z0-9,]*$",
        description="network interface for sockets, or its prefix, e.g. eth0; ^docker,lo: any but these",
    )
    topology: TopologyFile | None = Field(None, description="NCCL_TOPO_FILE from a ConfigMap")
    flight_recorder: bool = Field(
        True,
        description="record the last collectives, and write them to the run folder on a timeout",
    )
    variables: dict[Annotated[Variable, AfterValidator(_nccl_variable)], str] = Field(
        {}, description="more variables of NCCL; they win over the presets"
    )


def environment(nccl: Nccl, out: str) -> dict[str, str]:
    """Return the variables; `out` is the run folder as the trainer sees it."""
    found: dict[str, str] = {}
    for name in nccl.presets:
        found |= PRESETS[name]
    if nccl.flight_recorder:
        found |= {
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": f"{out}/flight-recorder-",
        }
    if nccl.socket_interface is not None:
        found["NCCL_SOCKET_IFNAME"] = nccl.socket_interface
        if not nccl.socket_interface.startswith(("^", "=")):
            found["GLOO_SOCKET_IFNAME"] = nccl.socket_interface
    if nccl.topology is not None:
        found["NCCL_TOPO_FILE"] = f"{TOPOLOGY}/{nccl.topology.key}"
    return found | dict(nccl.variables)
