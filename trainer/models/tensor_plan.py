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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import ParallelStyle


@dataclass(frozen=True)
class TensorPlan:
    """The styles of modules, by name, in which `*` matches anything.

    `divisible` has the numbers, by name, that the number of ranks must divide.
    """

    styles: Mapping[str, Sequence[ParallelStyle]]
    divisible: Mapping[str, int] = field(default_factory=dict)

    def styles_for(self, name: str) -> Sequence[ParallelStyle]:
        """Return the styles of the module `name`: those of the first pattern that matches."""
        return next((s for pattern, s in self.styles.items() if fnmatchcase(name, pattern)), ())


class Whole(ParallelStyle):
    """The module replicated on every rank: plain tensors in and out, parameters as DTensors.

    DTensors, because an optimiser's fused kernels refuse a mixture of them with plain parameters.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> tuple[Tensor, ...]:
            return tuple(
                x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [Replicate()])
                for x in inputs
            )

        def leave(_: nn.Module, outputs: DTensor, __: DeviceMesh) -> Tensor:
            return outputs.redistribute(placements=[Replicate()]).to_local()

        # torch annotates the two as returning None, and uses what they return
        return distribute_module(module, device_mesh, None, enter, leave)  # type: ignore[arg-type]
