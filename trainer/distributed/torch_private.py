"""Every private name of torch that the trainer uses, and why: no other file may use one.

Tested with torch 2.11, 2.13 and 2.15.

    divide_all(gradients, 2)
"""

import contextlib
import importlib
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.distributed import ProcessGroup, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import GroupName
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

# What a fake tensor, which has a shape but no values, raises when code reads its values.
LOOKS_INTO_DATA = (DataDependentOutputException, DynamicOutputShapeException)

# SGD's update of all parameters. It has no fake kernel (torch 2.15): with fake tensors, torch runs it on
# real ones of their sizes.
FUSED_SGD = torch.ops.aten._fused_sgd_

_MOST_ALLOCATIONS = 100_000  # a few hundred bytes each

__all__ = [
    "FakeTensor",  # the type of a dry run's tensors; torch documents it under this path only
    "FakeTensorMode",  # a dry run's tensors have no elements; torch documents it under this path only
    "TorchDispatchMode",  # sees each operation; torch documents it under this path only
]


def multiply_all(tensors: list[Tensor], factor: float | Tensor) -> None:
    """Multiply in place, in a few kernels; the public way is a loop with a kernel for each tensor.

    If the factor is a tensor, it has shape (), and the same device and dtype.
    """
    if tensors:  # torch refuses an empty list
        torch._foreach_mul_(tensors, factor)


def copy_all(to: list[Tensor], source: list[Tensor]) -> None:
    """Copy each tensor of `source` into one of `to`, all of one device and dtype: see multiply_all."""
    torch._foreach_copy_(to, source)


def divide_all(tensors: list[Tensor], divisor: float) -> None:
    """Divide in place, in a few kernels: see multiply_all."""
    if tensors:
        torch._foreach_div_(tensors, divisor)


def check_all_reduced(replica: DistributedDataParallel) -> None:
    """Raise DDP's error for parameters without a gradient, which the next forward pass would raise.

    Until then the other ranks, if their loss depends on these parameters, would wait for this rank.
    """
    replica._check_reducer_finalized()


def has_gradient_hook(parameter: Tensor) -> bool:
    """Return whether a hook changes or reads the tensor's gradient; torch offers no way to ask."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def allow_saved_tensor_hooks() -> None:
    """Allow them, as a checkpointed block needs; torch.func forbids them while it is compiled."""
    torch._C._autograd._saved_tensors_hooks_enable()


def zero_all(tensors: list[Tensor]) -> None:
    """Set to zero, in a few kernels: see multiply_all."""
    if tensors:
        torch._foreach_zero_(tensors)


def is_view(tensor: Tensor) -> bool:
    """Return whether `tensor` is a view for autograd; torch documents this name, with its underscore."""
    return tensor._is_view()


def join_axes(mesh: DeviceMesh, name: str) -> ProcessGroup:
    """Return one group for all axes of `mesh`; the public API has only groups for one axis."""
    return mesh._flatten(name).get_group()


def group_size(name: str) -> int:
    """Return the size of a group by its name, as in a collective's operation; no public API does it."""
    size: int = distributed_c10d._get_group_size_by_name(GroupName(name))
    return size


def forget_shardings() -> None:
    """Clear DTensor's cache, which has groups that are gone for equal meshes; no public API does it."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # noqa: PLC0415  # imports inductor: 0.2 s

    _clear_sharding_prop_cache()


@contextlib.contextmanager
def joining_meshes() -> Iterator[None]:
    """Make DeviceMesh join meshes with real tensors; fully_shard joins them for parameters split by tp.

    DeviceMesh searches them for its own rank, and a fake tensor has no elements. No public API leaves
    fake mode for that, or changes how meshes are joined.
    """
    join = DeviceMesh._concatenate

    def joined(meshes: list[DeviceMesh]) -> DeviceMesh:
        with unset_fake_temporarily():
            return join(meshes)

    before = vars(DeviceMesh)["_concatenate"]
    setattr(DeviceMesh, "_concatenate", joined)  # noqa: B010  # mypy forbids to assign a method
    try:
        yield
    finally:
        setattr(DeviceMesh, "_concatenate", before)  # noqa: B010


def replace_unpickler(unpickler: type[pickle.Unpickler]) -> None:
    """Make collectives of objects unpickle with `unpickler`; DCP offers no way to choose one."""
    distributed_c10d._unpickler = unpickler


def allow_graphs(number: int) -> None:
    """Let torch.compile keep at least `number` graphs per function; by default it keeps 8.

    A function that needs more runs uncompiled. torch documents the limit under this name; torch 2.11
    does not have the argument of torch.compile for it.
    """
    config: Any = importlib.import_module("torch._dynamo.config")
    config.recompile_limit = max(config.recompile_limit, number)


def allow_counts() -> None:
    """Let torch.compile take a changing number of a module, such as a count, for a variable.

    By default it compiles for each value of it. torch documents this name in its configuration.
    """
    config: Any = importlib.import_module("torch._dynamo.config")
    config.allow_unspec_int_on_nn_module = True


def flight_recorder(device: str) -> bytes:
    """Return the issued collectives as JSON; `{}` before torch 2.15. No public API returns them."""
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json  # noqa: PLC0415

        return bytes(_dump_fr_trace_json(backend="nccl" if device == "cuda" else "gloo"))
    except (ImportError, TypeError):
        return b"{}"


def record_memory() -> None:
    """Record each allocation on the GPUs from now on; torch documents this name, with its underscore."""
    torch.cuda.memory._record_memory_history(max_entries=_MOST_ALLOCATIONS)


def save_memory(path: str) -> None:
    """Write what record_memory has recorded, and stop recording. Raises OSError or RuntimeError."""
    try:
        torch.cuda.memory._dump_snapshot(path)
    finally:
        torch.cuda.memory._record_memory_history(None)


def forget_loader_worker() -> None:
    """Make `get_worker_info()` return None in a DataLoader's worker; torch offers no way to hide it."""
    vars(importlib.import_module("torch.utils.data._utils.worker"))["_worker_info"] = None


def preload() -> None:
    """Import the module that the first optimiser imports, for all forked ranks; its name is private."""
    importlib.import_module("torch._dynamo")
