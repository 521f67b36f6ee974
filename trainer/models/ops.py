"""Our own operators, registered so that torch can compile, differentiate and shard them.

`cross_entropy` keeps only the logits for its backward pass. torch's also keeps the log-probabilities:
with a large vocabulary that is one less of the largest tensor of a model. For few logits it is torch's.

    from trainer.models.ops import cross_entropy
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import Placement

# With no more logits than this, what is kept is small, and the operator itself would take longer than
# torch's functions: a fiftieth of a step of digits.
_FEW = 2**16
_NONE = -(2**63)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each target in nats, of the shape of `targets`, in float32 or float64.

    `logits` has one more dimension, the classes, as its last; `targets` are class numbers. If the logits
    are a DTensor, plain targets must be the same on all its ranks.
    """
    if not isinstance(logits, DTensor) and logits.numel() <= _FEW:
        wide = _widened(logits)
        # No class number is ignored, as torch's default -100 would be.
        if wide.dim() <= 2:  # each operation less is two, forward and backward
            return F.cross_entropy(wide, targets, reduction="none", ignore_index=_NONE)
        flat = wide.flatten(0, -2), targets.flatten()
        return F.cross_entropy(*flat, reduction="none", ignore_index=_NONE).view(targets.shape)
    if isinstance(logits, DTensor) and not isinstance(targets, DTensor):
        mesh = logits.device_mesh
        targets = DTensor.from_local(targets, mesh, [Replicate()] * mesh.ndim, run_check=False)
    found: Tensor = _cross_entropy(logits, targets)
    return found


@torch.library.custom_op("muster::cross_entropy", mutates_args=())
def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    exact = _widened(logits)
    return exact.logsumexp(-1) - exact.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


@_cross_entropy.register_fake
def _(logits: Tensor, targets: Tensor) -> Tensor:
    return _widened(logits).new_empty(targets.shape)


@torch.library.custom_op("muster::cross_entropy_backward", mutates_args=())
def _cross_entropy_backward(gradient: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    slope = _widened(logits).softmax(-1)
    here = targets.unsqueeze(-1)
    slope.scatter_add_(-1, here, slope.new_full((), -1).expand(here.shape))
    return slope.mul_(gradient.unsqueeze(-1)).to(logits.dtype)


@_cross_entropy_backward.register_fake
def _(gradient: Tensor, logits: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG001
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    logits, targets = ctx.saved_tensors
    return _cross_entropy_backward(gradient, logits, targets), None


_cross_entropy.register_autograd(_backward, setup_context=_keep)


def _widened(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


_Sharding = tuple[list[Placement], list[Placement]]  # of the outputs, of the inputs


def _shardings(targets: Any, *, inputs: int) -> list[_Sharding]:
    """Return the shardings that DTensor may use: any dimension but the classes, which are summed."""
    places = [Replicate(), *(Shard(dimension) for dimension in range(targets.ndim))]
    return [([place], [place] * inputs) for place in places]


register_sharding(torch.ops.muster.cross_entropy.default)(
    lambda _logits, targets: _shardings(targets, inputs=2)
)
register_sharding(torch.ops.muster.cross_entropy_backward.default)(
    lambda _gradient, _logits, targets: _shardings(targets, inputs=3)
)
