"""The tensor plan: how the layers of a model are split over ranks.

Your model has it as a method. The styles are those of torch.distributed.tensor.parallel; several for a
module are applied in order, and a module without a style is replicated:

    def tensor_plan(self, *, sequence_parallel, loss_parallel):
        return TensorPlan(
            {"hidden": [ColwiseParallel()], "head": [RowwiseParallel()]},
            divisible={"features": 512},
        )

Between two pieces of its chain (`trainer/models/chain.py`) a model has whole tensors, or with
sequence_parallel each rank's share along dimension 1. With loss_parallel its outputs are a DTensor
sharded along the last dimension, as `torch.distributed.tensor.parallel.loss_parallel` needs it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ParallelStyle


@dataclass(frozen=True)
class TensorPlan:
    """The styles of modules, by name, in which `*` matches anything.

    `divisible` has the numbers, by name, that the number of ranks must divide.
    """

    styles: Mapping[str, Sequence[ParallelStyle]]
    divisible: Mapping[str, int] = field(default_factory=dict)

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return the patterns that match none of the `names` of a model's modules."""
        return [one for one in self.styles if not any(fnmatchcase(name, one) for name in names)]

    def styles_for(self, name: str) -> Sequence[ParallelStyle]:
        """Return the styles of the module `name`: those of the first pattern that matches."""
        return next((s for pattern, s in self.styles.items() if fnmatchcase(name, pattern)), ())


class Whole(ParallelStyle):
    """The module's own parameters replicated on every rank; it computes with plain tensors.

    They are DTensors, because an optimiser's fused kernels refuse a mixture of them with plain tensors.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in [*module.named_parameters(recurse=False)]:
            replicated = DTensor.from_local(parameter.detach(), device_mesh, [Replicate()])
            module.register_parameter(name, nn.Parameter(replicated, parameter.requires_grad))
        kind: Any = type(module)
        module.__class__ = _plain(kind)

        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(
                x.redistribute(placements=[Replicate()]).to_local() if isinstance(x, DTensor) else x
                for x in inputs
            )

        module.register_forward_pre_hook(enter)
        return module


@cache  # torch.compile has a graph for each class
def _plain(kind: Any) -> type[nn.Module]:
    return type(kind.__name__, (_Plain, kind), {"__module__": kind.__module__})


class _Plain(nn.Module):
    """Gives its parameters as plain tensors of the same memory to code that reads them by name.

    Not a hook on its forward pass: that runs a second time without hooks when it is recomputed, and
    nn.MultiheadAttention reads the weights of a layer that it does not call.
    """

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        # One that FSDP has sharded has a mesh of two dimensions; FSDP reads it by name, too.
        if not isinstance(value, DTensor) or value.device_mesh.ndim > 1:
            return value
        # Another object each time: an LSTM then makes its list of weights again, into which FSDP has put
        # DTensors (torch 2.11).
        local = value.to_local()
        return local.view_as(local)
