"""The modes of parallel training, one file each. The shortest is `single.py`.

A mode's file has `build(model, context) -> Strategy`. Its row in `trainer/config/modes.py` has the facts
that need no torch. A strategy answers five questions: which module is trained, what updates it, how a
step's gradients are computed, how they are clipped, and how outputs are computed in evaluation.

    strategy = strategies.build("ddp", model, context)
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainer.config.exits import Exit, Fault
from trainer.config.modes import DATA_AXES, MODES
from trainer.config.settings import Settings
from trainer.data.sets import Batch, Nested
from trainer.distributed.optim import NOTHING, Own
from trainer.distributed.precision import autocast, half, in_float32
from trainer.distributed.runtime import Runtime
from trainer.distributed.tensors import by_kind, local_part, move
from trainer.distributed.torch_private import has_gradient_hook, multiply_all
from trainer.models.ema import Average


def build(mode: str, model: nn.Module, context: "Context") -> "Strategy":
    """Return the strategy of `mode` for `model`, which is on the rank's device, or on the CPU if staged.

    With one rank, a mode that uses axes of the mesh is the same as `single`.
    """
    if MODES[mode].axes and context.runtime.mesh is None:
        move(model, context.runtime.device)
        mode = "single"
    sizes = context.runtime.sizing.mesh
    if sizes.get("dp_shard", 1) > 1 or sizes.get("tp", 1) > 1:
        refuse_gradient_hooks(model, context.settings)
    if context.runtime.sizing.batches.replicas > 1 and not MODES[mode].sends_every:
        refuse_max_norm(model, context.settings)
    module = import_module(f"{__name__}.{mode.replace('-', '_')}")
    strategy: Strategy = module.build(model, context)
    if half(context.settings) is None:
        return strategy
    return replace(
        strategy, forward=lambda inputs: in_float32(strategy.forward(inputs), context.settings)
    )


@dataclass(frozen=True)
class Context:
    """The arguments of a mode's `build`, except the model."""

    settings: Settings
    runtime: Runtime
    # loss(outputs, targets): returns one loss per sample, shape (n,).
    loss: Callable[[Tensor, Nested], Tensor]
    # Returns a micro-batch, for its shape and type.
    example: Callable[[], Batch]
    # The task's own optimiser, parameter groups and schedule.
    own: Own = NOTHING

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the ranks, for a mode that has axes."""
        if self.runtime.mesh is None:
            raise RuntimeError(f"mode {self.settings.mode}: built without a mesh")
        return self.runtime.mesh


# whole_step(micro_batches, weight): a step with clipping and update. If the norm is not finite, it does
# not update. Returns this rank's sum of losses and the norm, as `step` and `clip` do.
WholeStep = Callable[[Sequence[Batch], float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Strategy:
    """How a mode trains: the five answers, and fields that only some modes need."""

    # Holds the parameters. It is saved in checkpoints.
    module: nn.Module
    # Updates the parameters. Its state is saved.
    optimizer: torch.optim.Optimizer
    # step(micro_batches, weight): leaves in the parameters the gradient of the global batch's mean loss
    # and returns this rank's sum of losses. `weight` is the global batch's sum of sample weights.
    step: Callable[[Sequence[Batch], float], Tensor]
    # clip(norm): scales the gradients to a global norm of at most `norm` (0: does not scale). Returns
    # the norm before. It is the same on every rank, so all ranks skip the update if it is not finite.
    clip: Callable[[float], Tensor]
    # forward(inputs): the model's outputs in evaluation. None if another rank has the outputs.
    forward: Callable[[Nested], Tensor | None]
    # With TRAINER_COMPILE=step, if the mode supports it: does what `step`, `clip` and the optimiser do.
    whole_step: WholeStep | None = None
    # If the optimiser is itself distributed: the part of it that this rank saves.
    saved_optimizer: torch.optim.Optimizer | None = None
    # Called before weights are saved or evaluated: completes all steps, makes all ranks' weights equal.
    synchronize: Callable[[], None] = lambda: None
    # Saved and loaded with the optimiser, each part under its name.
    extra: Mapping[str, Stateful] = field(default_factory=dict)
    # Modules that hold parts of `module` but are not its submodules: the stages of a pipeline.
    stages: Sequence[nn.Module] = ()
    # Called last, also when the run fails.
    close: Callable[[], None] = lambda: None
    # What the mode has chosen, for the launch event.
    notes: Mapping[str, object] = field(default_factory=dict)
    # The outputs of the model for the first sample before its layers were split, if they are known.
    before: Tensor | None = None


def refuse_gradient_hooks(model: nn.Module, settings: Settings) -> None:
    """Raise Fault(64) if a parameter has a hook on its gradient: the mode makes other tensors of it."""
    for name, parameter in model.named_parameters():
        if has_gradient_hook(parameter):
            raise Fault(
                Exit.CONFIG,
                f"task {settings.task}: its parameter {name} has a hook on its gradient, which would be "
                f"lost in mode {settings.mode}; use mode ddp, or put the change into the model",
            )


def refuse_max_norm(model: nn.Module, settings: Settings) -> None:
    """Raise Fault(64) for an embedding with max_norm: a rank scales only the rows that it looks up."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise Fault(
                Exit.CONFIG,
                f"task {settings.task}: its model's {name or 'outermost module'} has max_norm="
                f"{module.max_norm}, by which each rank changes other rows, so that in mode "
                f"{settings.mode} the replicas would differ; scale the weight in forward(), as with "
                "weight.renorm(2, 0, 1.0), or use one rank",
            )


def accumulate(
    module: nn.Module,
    micro_batches: Sequence[Batch],
    context: Context,
    *,
    scale: float,
    no_sync: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Tensor:
    """Run forward and backward over the micro-batches of a step and return their sum of losses.

    Every loss is multiplied by `scale` before its backward pass. All but the last micro-batch run
    under `no_sync()`, for modules whose backward pass communicates.
    """
    losses = []
    for number, batch in enumerate(micro_batches, start=1):
        with contextlib.nullcontext() if number == len(micro_batches) else no_sync():
            with autocast(context.settings, context.runtime.device):
                outputs = module(batch.inputs)
            loss = summed_loss(outputs, batch, context)
            seen = loss.detach()
            # backward starts with the scale; with nan if the loss is not finite.
            loss.backward(seen.new_full((), scale).add_(seen, alpha=0))
        losses.append(seen)
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def inference(module: nn.Module, context: Context) -> Callable[[Nested], Tensor]:
    """Return the forward pass of evaluation, in the precision of the settings."""

    def forward(inputs: Nested) -> Tensor:
        with autocast(context.settings, context.runtime.device):
            outputs: Tensor = module(inputs)
        return outputs

    return forward


def weighted_loss(outputs: Tensor, batch: Batch, context: Context) -> Tensor:
    """Return the sum of a micro-batch's losses, each times its sample's weight, shape ().

    If the sum is not finite, its gradient is nan, even if the loss alone would have a finite gradient.
    So all ranks see in the gradient that they must skip the step.
    """
    total = summed_loss(outputs, batch, context)
    return total * (1 + 0 * total.detach())


def summed_loss(outputs: Tensor, batch: Batch, context: Context) -> Tensor:
    """Return the sum of a micro-batch's losses, each times its sample's weight, shape ()."""
    losses = context.loss(in_float32(outputs, context.settings), batch.targets)
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
    if batch.whole:
        return losses.sum()
    # torch.where, not a product: a loss of padding must not reach the sum, and 0 * inf is nan.
    return torch.where(batch.weights > 0, losses * batch.weights, 0.0).sum()


def clip(
    parameters: Sequence[nn.Parameter], norm: float, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Clip gradients to a global norm of at most `norm` (0: do not clip) and return the norm before.

    A gradient may be whole on every rank, or sharded over some axes of a mesh and replicated over the
    other axes; every element counts once. If this rank has only a stage of the model, `group` has the
    ranks with the other stages.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    total = global_norm(gradients, group, like=parameters[0])
    if norm:
        scale = (norm / (total + 1e-6)).clamp(max=1.0)  # as in torch's clip_grad_norm_
        for (device, dtype), parts in by_kind(map(local_part, gradients)).items():
            multiply_all(parts, scale.to(device, dtype))
    return total


def global_norm(
    gradients: Sequence[Tensor], group: dist.ProcessGroup | None, *, like: Tensor
) -> Tensor:
    """Return the 2-norm of all the gradients, shape (), the same on every rank.

    It has the dtype of the parameter `like`, at least float32, and without gradients also its device.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    if (
        gradients
        and group is None
        and all(one.dtype == dtype and not isinstance(one, DTensor) for one in gradients)
    ):
        # This rank has all gradients whole. torch 2.13 has no norm of a sparse one.
        return nn.utils.get_total_norm(
            [one.coalesce().values() if one.is_sparse else one for one in gradients]
        )
    # By mesh and its sharding axes: the squares of one kind are summed with one call for each axis.
    kinds: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[Tensor]] = {}
    for gradient in gradients:
        mesh: DeviceMesh | None = None
        axes: tuple[int, ...] = ()
        if isinstance(gradient, DTensor):
            mesh = gradient.device_mesh
            if any(placement.is_partial() for placement in gradient.placements):
                raise ValueError(f"a gradient is not summed yet: {gradient.placements}")
            axes = tuple(n for n, p in enumerate(gradient.placements) if not p.is_replicate())
        kinds.setdefault((mesh, axes), []).append(local_part(gradient))
    squares = []
    for (mesh, axes), parts in kinds.items():
        square = nn.utils.get_total_norm(parts).double().square()
        if mesh is not None and axes:
            square = square.to(mesh.device_type)  # with cpu_offload the shards are on the CPU
            for axis in axes:
                dist.all_reduce(square, group=mesh.get_group(axis))
        squares.append(square)
    if not squares:  # a stage without trained parameters
        squares.append(torch.zeros((), dtype=torch.float64, device=like.device))
    total = torch.stack([square.to(squares[0].device) for square in squares]).sum()
    if group is not None:
        dist.all_reduce(total, group=group)
    return total.sqrt().to(dtype)


def broadcast_buffers(module: nn.Module | Average, mesh: DeviceMesh) -> None:
    """Copy the first rank's buffers, such as running statistics, to the ranks that see other samples."""
    for axis in DATA_AXES:
        if mesh[axis].size() > 1:
            for buffer in module.buffers():
                dist.broadcast(local_part(buffer), group=mesh.get_group(axis), group_src=0)
