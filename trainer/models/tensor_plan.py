"""What a model offers whose layers can be split over ranks: how each of them is.

A model of one's own offers it by a method; the styles are those of torch.distributed.tensor.parallel,
several for a module are applied in order, and what is left out every rank holds whole:

    def tensor_plan(self, *, sequence_parallel, loss_parallel):
        return TensorPlan(
            {"hidden": [ColwiseParallel()], "head": [RowwiseParallel()]},
            divisible={"features": 512},
        )

Between two pieces of its chain (`trainer/models/chain.py`) a model has whole tensors, or with
sequence_parallel each rank's share along dimension 1. With loss_parallel its outputs are a DTensor
that is split along the last dimension, as `torch.distributed.tensor.parallel.loss_parallel` wants it.
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
    """How modules are split: names, in which `*` stands for anything, and each one's styles.

    `divisible` names the numbers that the count of ranks has to divide.
    """

    styles: Mapping[str, Sequence[ParallelStyle]]
    divisible: Mapping[str, int] = field(default_factory=dict)

    def styles_for(self, name: str) -> Sequence[ParallelStyle]:
        """Return the styles of the module `name`: those of the first name that matches."""
        return next((s for pattern, s in self.styles.items() if fnmatchcase(name, pattern)), ())


class Whole(ParallelStyle):
    """The module as it is, on every rank: plain tensors in and out, parameters as DTensors.

    DTensors, since an optimiser's fused kernels take no mixture of them with plain parameters.
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
