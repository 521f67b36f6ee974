"""The process group, the device and the mesh of one rank. The group is destroyed when the run ends.

with join(settings) as runtime: ...
"""

import contextlib
import errno
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config.contract import is_elastic
from trainer.config.environment import variable
from trainer.config.exits import Exit, Fault
from trainer.config.modes import AXES
from trainer.config.settings import Settings
from trainer.distributed.arrival import await_all
from trainer.distributed.unpickling import restrict
from trainer.plan import auto
from trainer.plan.mesh import data_rank
from trainer.plan.sizing import Sizing, size

_MARGIN = 15  # seconds that the watchdog has to report before a collective times out

# gloo's messages, in a plain RuntimeError, if a peer is gone or does not answer.
_GLOO_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Socket closed",
    "Timed out waiting",
    "Application timeout",
    "gloo connectFullMesh failed",
)
_LIBRARIES = ("CUBLAS_STATUS", "CUDNN_STATUS", "CUSOLVER_STATUS")  # in errors of these libraries
ASSERT = "device-side assert"  # a kernel's check of its input
_OUTSIDE = (
    "an index outside its range, such as a label that is no class; "
    "with CUDA_LAUNCH_BLOCKING=1 the stack shows where"
)
_NO_ROOM = ("can't allocate memory", "not enough memory")  # RuntimeErrors of torch's CPU allocator


@dataclass(frozen=True)
class Runtime:
    """This rank's place in the run. `control` is a gloo group for collectives of CPU tensors."""

    rank: int
    local_rank: int
    device: torch.device
    backend: str
    sizing: Sizing
    mesh: DeviceMesh | None
    control: dist.ProcessGroup | None
    data_rank: int

    @property
    def world_size(self) -> int:
        return self.sizing.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which reports for all ranks."""
        return self.rank == 0

    @property
    def seed_rank(self) -> int:
        """A number for seeds in layers; it differs by share of the data and by pipeline stage."""
        stage = self.mesh.get_local_rank("pp") if self.mesh else 0
        return int(stage * self.sizing.batches.replicas + self.data_rank)

    @property
    def part(self) -> int:
        """A number for seeds in an update; it differs by part of the weights, by stage and shard."""
        if self.mesh is None:
            return 0
        stage, shard = self.mesh.get_local_rank("pp"), self.mesh.get_local_rank("dp_shard")
        return int(stage * self.sizing.mesh["dp_shard"] + shard)

    @property
    def counts(self) -> bool:
        """Whether this rank counts its samples; all ranks of one tp group have the same samples."""
        return self.mesh is None or self.mesh.get_local_rank("tp") == 0


@contextlib.contextmanager
def join(settings: Settings) -> Iterator[Runtime]:
    """Join the process group that the launcher prepared; without a launcher the world size is 1.

    RANK and WORLD_SIZE are read only if a launcher has set them, because the PyTorchJob operator sets
    them to numbers of nodes (kubeflow/trainer 1790, 1947).
    """
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    world_size = int(os.environ["WORLD_SIZE"]) if launched else 1
    rank = int(os.environ["RANK"]) if launched else 0
    local_rank = int(os.environ["LOCAL_RANK"]) if launched else 0
    uneven = launched and is_elastic(os.environ)
    device = _device(local_rank)
    sizing = size(settings, world_size, label=variable, uneven=uneven)
    if world_size == 1:
        yield Runtime(rank, local_rank, device, "none", sizing, None, None, 0)
        return
    if dist.is_initialized():
        raise Fault(
            Exit.CONFIG,
            f"task {settings.task}: it has called init_process_group(), which the trainer does; remove "
            "the call",
        )
    backend = dist.get_default_backend_for_device(device)
    # The watchdog reports first and names the missing rank; this timeout is needed if it cannot.
    timeout = timedelta(seconds=settings.collective_timeout + _MARGIN)
    store, _, _ = next(dist.rendezvous("env://", rank, world_size, timeout=timeout))
    store.set_timeout(timeout)
    await_all(store, rank=rank, world_size=world_size, seconds=settings.collective_timeout)
    # CPU memory is not passed, because the ranks of a machine share it.
    memory = None if device.type == "cpu" else torch.accelerator.get_memory_info(device)[1]
    sizing = auto.agree(settings, sizing, store, rank=rank, device_bytes=memory, uneven=uneven)
    restrict()
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if device.type != "cpu" else None,
    )
    together = False
    try:
        control = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=timeout))
        mesh, share = place(sizing, device)
        yield Runtime(rank, local_rank, device, backend, sizing, mesh, control, share)
        # If a rank leaves while another still communicates, the other aborts: in 7 of 52 runs without
        # this barrier, in 0 of 52 with it (gloo, torch 2.13).
        dist.barrier(group=control)
        together = True
    finally:
        # With NCCL, a rank that fails would wait here forever for ranks that wait for it (pytorch
        # 119250, nccl 1777). The end of the process ends the group too (`ending.exit_process`).
        if together or backend != "nccl":
            dist.destroy_process_group()


def place(sizing: Sizing, device: torch.device) -> tuple[DeviceMesh, int]:
    """Return the mesh of all ranks, and the share of the data that this rank reads."""
    extents = tuple(sizing.mesh[axis] for axis in AXES)
    mesh = init_device_mesh(device.type, extents, mesh_dim_names=AXES)
    coordinates = {axis: mesh.get_local_rank(axis) for axis in AXES}
    return mesh, data_rank(coordinates, sizing.mesh)


def _device(local_rank: int) -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    count = torch.accelerator.device_count()
    if local_rank >= count:
        raise Fault(
            Exit.MACHINE,
            f"local rank {local_rank} finds {count} {accelerator.type} devices on this machine; "
            f"start at most {count} ranks here",
        )
    torch.accelerator.set_device_index(local_rank)
    return torch.device(accelerator.type, local_rank)


def total(values: list[float], runtime: Runtime) -> list[float]:
    """Return the sums of `values` over all ranks in float64; ranks with the same samples count once."""
    if runtime.control is None:
        return values
    tensor = torch.tensor(values, dtype=torch.float64)
    if not runtime.counts:
        tensor.zero_()
    dist.all_reduce(tensor, group=runtime.control)
    return tensor.tolist()


def peak_memory(device: torch.device) -> int:
    """Return the peak memory use of this rank in bytes: on its device, or on the host."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    return torch.accelerator.max_memory_allocated(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a device or on the host."""
    by_allocator = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_ROOM)
    by_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return by_allocator or by_system or isinstance(error, torch.OutOfMemoryError | MemoryError)


def as_fault(error: BaseException) -> Fault:
    """Return the fault for an exception: its exit code, and the reason in one line.

    The exceptions that caused it count too: a pipeline's schedule wraps the error of its stage.
    """
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for link in chain:
        if fault := _recognised(link):
            return fault
    with_text = next((link for link in chain if str(link).partition("\n")[0].strip()), error)
    return Fault(Exit.CODE, _line(with_text))


def _recognised(error: BaseException) -> Fault | None:
    """Return the fault of an exception with an exit code of its own; None for any other."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Fault(Exit.STOPPED, "interrupted before the first step")
    error = _of_the_device(error)
    if ASSERT in str(error):
        return Fault(Exit.CODE, f"{_line(error)}: {_OUTSIDE}")
    if isinstance(error, torch.AcceleratorError) or "ncclUnhandledCudaError" in str(error):
        return Fault(Exit.MACHINE, _line(error))
    if isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in _GLOO_LOST_PEER)
    ):
        # gloo's text begins with a line of its source and ends with advice
        text = re.sub(r"\[\S+:\d+\] ", "", _line(error)).partition(". This is")[0]
        return Fault(Exit.PEER, f"lost a peer: {text}")
    return None


def _of_the_device(error: BaseException) -> BaseException:
    """Return the device's own error if a library's call on it failed.

    A kernel runs later than it is called, so its error appears in a later call, often of cuBLAS, which
    then reports its own error. Synchronising the device raises the first error.
    """
    if any(sign in str(error) for sign in _LIBRARIES) and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except torch.AcceleratorError as first:
            return first
    return error


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
