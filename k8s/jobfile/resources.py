"""What one node has: processors, memory, accelerators, RDMA devices, and the ranks that share them.

render.py job.yaml --set resources.gpu=8 --set 'resources.rdma={vpc.amazonaws.com/efa: 32}' --plan
"""

from collections.abc import Iterator

from pydantic import Field

from k8s.base import quantity
from k8s.base.errors import config_error
from k8s.base.model import Cores, Device, Model, Positive, Size

_DEFAULT_SHM = 2**30
_LARGEST_DEFAULT_SHM = 32 * 2**30
_MEBI = 2**20

_Devices = dict[Device, Positive]


class Resources(Model):
    """What one node (a pod) has."""

    gpu: int = Field(0, ge=0, le=100_000, description="accelerators per node")
    gpu_resource: Device = Field(
        "nvidia.com/gpu",
        description="their resource name in the cluster, e.g. amd.com/gpu, nvidia.com/mig-1g.10gb",
    )
    gpu_memory: Size | None = Field(
        None,
        description="memory of one accelerator, e.g. 80Gi; --plan compares its estimate with it",
    )
    cpu: Cores | None = Field(None, description="cores per node, e.g. 8 or 500m")
    memory: Size | None = Field(None, description="memory per node, including /dev/shm, e.g. 64Gi")
    shm: Size | None = Field(
        None,
        description="size of /dev/shm (default: a quarter of memory, at most 32Gi; 1Gi without memory)",
    )
    rdma: _Devices = Field(
        {},
        description="RDMA devices per node, e.g. {vpc.amazonaws.com/efa: 32}; they "
        "need locked memory, so the pods get the capability IPC_LOCK",
    )
    devices: _Devices = Field(
        {},
        description="other extended resources per node; they add no capability",
    )


def ranks(resources: Resources, procs: int | None) -> int:
    """Return the number of ranks per node. Raises Fault(64)."""
    if resources.gpu > 1 and "/mig-" in resources.gpu_resource:
        # CUDA shows a process the first slice it may see and no other, so the second rank has none.
        raise config_error(
            f"resources.gpu={resources.gpu}: a process can use only one slice of "
            f"{resources.gpu_resource}; set resources.gpu=1 and more nodes instead"
        )
    if procs is None:
        return resources.gpu or 1
    if procs == 0:
        return 1
    if resources.gpu and procs > resources.gpu:
        raise config_error(
            f"procsPerNode={procs}: more ranks than GPUs, and two ranks on one GPU slow each other "
            f"down; resources.gpu is {resources.gpu}, so set at most {resources.gpu}"
        )
    return procs


def shm(resources: Resources) -> tuple[str, int]:
    """Return the size of /dev/shm as text and in bytes; memory holds it and must hold more."""
    memory, text = resources.memory, resources.shm
    if memory is not None and memory.isdecimal() and int(memory) < _MEBI:
        raise config_error(
            f"resources.memory={memory!r}: without a suffix it is bytes; write e.g. {memory}Gi"
        )
    if text is None:
        if memory is None:
            return quantity.binary(_DEFAULT_SHM), _DEFAULT_SHM
        quarter = quantity.size(memory) // 4
        count = min(quarter // _MEBI * _MEBI or quarter or 1, _LARGEST_DEFAULT_SHM)
        return quantity.binary(count), count
    count = quantity.size(text)
    if memory is not None and quantity.size(memory) <= count:
        raise config_error(
            f"resources.memory={memory!r}: must be more than resources.shm, {text}, which is part of "
            f"it; use e.g. {quantity.binary(2 * count)}"
        )
    return text, count


def amounts(resources: Resources) -> tuple[dict[str, str], dict[str, str]]:
    """Return requests and limits: no limit on CPU, which would only throttle; all else the same.

    Raises Fault(64).
    """
    devices = {resources.gpu_resource: str(resources.gpu)} if resources.gpu else {}
    for key, asked in (("rdma", resources.rdma), ("devices", resources.devices)):
        for name, count in asked.items():
            if name in devices:
                raise config_error(f"resources.{key}.{name}={count}: given twice; leave out one")
            devices[name] = str(count)
    limits = ({"memory": resources.memory} if resources.memory is not None else {}) | devices
    requests = {"cpu": resources.cpu} if resources.cpu is not None else {}
    return requests | limits, limits


def warnings(resources: Resources, procs: int) -> Iterator[str]:
    """Yield what is odd about what a node of a cluster has."""
    if procs < resources.gpu:
        yield f"procsPerNode: {resources.gpu - procs} of {resources.gpu} GPUs per node have no rank"
    if resources.rdma:
        yield (
            "resources.rdma: Pod Security restricted and baseline forbid IPC_LOCK. Kubernetes gives it "
            "to root processes only, so the machines must let any user lock memory "
            "(LimitMEMLOCK=infinity of the container runtime)"
        )
    if resources.memory is None:
        yield "resources.memory: not set; pods without it are evicted first"
