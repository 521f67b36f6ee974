"""The modes of parallel training, a file each.

A strategy answers what differs between them: how the model is wrapped, what updates it, how a step
is taken, how gradients are clipped, and what evaluates.

A mode's file offers `build(model, context) -> Strategy`; its row is in `trainer/config/modes.py`.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainer.config.modes import DATA_AXES
from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.distributed.precision import autocast
from trainer.distributed.runtime import Runtime

# Outputs and targets to one loss per sample, shape (n,).
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Context:
    """What a strategy is built with; `example` gives the inputs of a micro-batch, for their shape."""

    settings: Settings
    runtime: Runtime
    loss: Loss
    example: Callable[[], Tensor]


@dataclass(frozen=True)
class Strategy:
    """A mode at work.

    `module` holds the parameters and `optimizer` updates them; both are saved. Where the optimiser is
    itself distributed, `saved_optimizer` is the part of it that this rank saves.
    `step(micro_batches, weight)` leaves in them the gradient of the global batch's mean loss and
    returns this rank's sum of losses; `weight` is the global batch's sum of weights.
    `clip(norm)` scales the gradients to a global norm of at most `norm` (0: not at all) and returns
    what the norm was, the same on every rank: it decides whether the step is taken.
    `forward(inputs)` is the model for evaluation; None where another rank has the outputs.
    `settle()` comes before weights are saved or evaluated: afterwards every rank's are the same, and all
    steps are in them. `extra` is saved beside the optimiser, each part under its name. `close()` comes
    last, however the run ends.
    `notes` are what the mode has chosen by itself, for the launch event.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[Sequence[Batch], float], Tensor]
    clip: Callable[[float], Tensor]
    forward: Callable[[Tensor], Tensor | None]
    saved_optimizer: torch.optim.Optimizer | None = None
    settle: Callable[[], None] = lambda: None
    extra: Mapping[str, Stateful] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    notes: Mapping[str, object] = field(default_factory=dict)


def build(mode: str, model: nn.Module, context: Context) -> Strategy:
    """Return the strategy of `mode` for `model`: on the rank's device, or on the CPU if staged."""
    module = import_module(f"{__name__}.{mode.replace('-', '_')}")
    strategy: Strategy = module.build(model, context)
    return strategy


def accumulate(
    module: nn.Module,
    micro_batches: Sequence[Batch],
    context: Context,
    *,
    scale: float,
    unsynced: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Tensor:
    """Run forward and backward over the micro-batches of a step and return their sum of losses.

    Every loss is multiplied by `scale` before its backward pass. All but the last micro-batch run
    under `unsynced`, for modules whose backward pass communicates.
    """
    losses = []
    for number, batch in enumerate(micro_batches, start=1):
        with contextlib.nullcontext() if number == len(micro_batches) else unsynced():
            with autocast(context.settings, context.runtime.device):
                outputs = module(batch.inputs)
            loss = weighted_loss(outputs, batch, context)
            (loss * scale).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def inference(module: nn.Module, context: Context) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of evaluation, in the precision of the settings."""

    def forward(inputs: Tensor) -> Tensor:
        with autocast(context.settings, context.runtime.device):
            outputs: Tensor = module(inputs)
        return outputs

    return forward


def weighted_loss(outputs: Tensor, batch: Batch, context: Context) -> Tensor:
    """Return the sum of the losses of a micro-batch, a sample that only fills the shape left out.

    A sum that is not finite makes its gradient nan, even where the loss itself would have let a finite
    one through: by the gradient all ranks then see that the step is to be skipped.
    """
    losses = context.loss(outputs, batch.targets)
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
    # where, not a product: nothing that the filler computes may reach the sum, not even as 0 * inf.
    total = torch.where(batch.weights > 0, losses * batch.weights, 0.0).sum()
    return total * (1 + 0 * total.detach())


def clip(
    parameters: Sequence[nn.Parameter], norm: float, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Clip gradients to a global norm of at most `norm` (0: not at all) and return what it was.

    Each may be whole on every rank, or split over some axes of a mesh and the same along the others;
    every element counts once. Where the parameters are only a stage, `group` has the ranks that hold
    the others.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    total = global_norm(gradients, group)
    if norm:
        scale = (norm / (total + 1e-6)).clamp(max=1.0)  # as in torch's clip_grad_norm_
        for gradient in gradients:
            part = local(gradient)
            part.mul_(scale.to(part.device, part.dtype))
    return total


def global_norm(gradients: Sequence[Tensor], group: dist.ProcessGroup | None) -> Tensor:
    """Return the 2-norm of all the gradients, the same on every rank."""
    kinds: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[Tensor]] = {}
    for gradient in gradients:
        mesh: DeviceMesh | None = None
        split: tuple[int, ...] = ()
        if isinstance(gradient, DTensor):
            mesh = gradient.device_mesh
            if any(placement.is_partial() for placement in gradient.placements):
                raise ValueError(f"a gradient is not summed yet: {gradient.placements}")
            split = tuple(n for n, p in enumerate(gradient.placements) if not p.is_replicate())
        kinds.setdefault((mesh, split), []).append(local(gradient))
    squares = []
    for (over, axes), parts in kinds.items():
        square = nn.utils.get_total_norm(parts).double().square()
        if over is not None and axes:
            square = square.to(over.device_type)  # with cpu_offload the shards are elsewhere
            for axis in axes:
                dist.all_reduce(square, group=over.get_group(axis))
        squares.append(square)
    total = torch.stack([square.to(squares[0].device) for square in squares]).sum()
    if group is not None:
        dist.all_reduce(total, group=group)
    return total.sqrt().to(torch.promote_types(gradients[0].dtype, torch.float32))


def share_buffers(module: nn.Module, mesh: DeviceMesh) -> None:
    """Give all ranks that see other samples the buffers of the first, running statistics among them."""
    for axis in DATA_AXES:
        if mesh[axis].size() > 1:
            for buffer in module.buffers():
                dist.broadcast(local(buffer), group=mesh.get_group(axis), group_src=0)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
