"""Tensor parallel: each layer's weights split over ranks that compute one micro-batch together.

Columns of a layer's first matrix and rows of its second (Shoeybi et al., 2019), norms on shares of
the sequence (Korthikanti et al., 2022), by torch's DTensor. The model says how its layers are split
(`trainer/models/tensor_plan.py`). The mesh's data axes, if it has some, shard what is left of each
weight (dp_shard) or replicate it.

    TRAINER_TASK=charlm-gpt TRAINER_MODE=tp torchrun --nproc-per-node 2 -m trainer
    TRAINER_MODE=tp TRAINER_MESH=dp_shard=2,tp=2 torchrun --nproc-per-node 4 -m trainer
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.distributed import optim
from trainer.models.tensor_plan import TensorPlan, Whole
from trainer.strategies import (
    Context,
    Strategy,
    accumulate,
    clip,
    fsdp,
    inference,
    share_buffers,
    single,
)


@runtime_checkable
class Splittable(Protocol):
    """A model that says how its layers are split."""

    def tensor_plan(self, *, sequence_parallel: bool, loss_parallel: bool) -> TensorPlan: ...


def build(model: nn.Module, context: Context) -> Strategy:
    runtime, settings = context.runtime, context.settings
    mesh = runtime.mesh
    if mesh is None:  # a world of one has nothing to split over
        return single.build(model, context)
    parallelize(model, mesh["tp"], settings)
    replicas = runtime.sizing.batches.replicas
    sharded = None
    if replicas > 1:
        sharded = fsdp.shard(model, fsdp.data_mesh(mesh), settings)
    parameters = list(model.parameters())
    gathered = replace(context, loss=whole_loss(context.loss))
    forward = inference(model, context)

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        with computing(settings):
            loss = accumulate(
                model,
                micro_batches,
                gathered,
                # The reduce-scatter averages over the replicas, while the loss is a mean over the batch.
                scale=replicas / weight,
                unsynced=fsdp.unsynced(sharded) if sharded else contextlib.nullcontext,
            )
        complete(parameters)
        return loss

    return Strategy(
        module=model,
        optimizer=optim.build(parameters, settings),
        step=step,
        clip=lambda norm: clip(parameters, norm),
        forward=lambda inputs: whole(forward(inputs)),
        settle=lambda: share_buffers(model, mesh),
    )


def parallelize(module: nn.Module, mesh: DeviceMesh, settings: Settings) -> None:
    """Split the layers of `module` over the one-dimensional `mesh`, as the model's plan says.

    Parts of the model that are not there, as in a stage of a pipeline, are passed over. Raises
    Fault(64) when the model has no plan, or the ranks do not divide what it splits.
    """
    if not isinstance(module, Splittable):
        raise Fault(
            Exit.CONFIG,
            f"task {settings.task}: its model {type(module).__name__} cannot be split over the axis tp: "
            "it offers no tensor_plan(), which says how each of its layers is; see "
            "trainer/models/tensor_plan.py",
        )
    plan = module.tensor_plan(
        sequence_parallel=settings.sequence_parallel, loss_parallel=settings.loss_parallel
    )
    for name, number in plan.divisible.items():
        if number % mesh.size():
            fitting = max(n for n in range(1, mesh.size()) if number % n == 0)
            raise Fault(
                Exit.CONFIG,
                f"task {settings.task}: the {number} {name} of its model do not divide over "
                f"tp={mesh.size()}; tp={fitting} would do",
            )
    for name, part in list(module.named_modules()):
        if not any(True for _ in part.parameters(recurse=False)):
            continue
        for style in plan.of(name) or [Whole()]:
            parallelize_module(part, mesh, style)


def computing(settings: Settings) -> contextlib.AbstractContextManager[object]:
    """Return the context of forward, loss and backward passes."""
    return loss_parallel() if settings.loss_parallel else contextlib.nullcontext()


def borders(between: Sequence[Tensor], mesh: DeviceMesh, settings: Settings) -> list[Tensor]:
    """Return what each rank has of the tensors that go into, between and out of a model's pieces."""
    if not settings.sequence_parallel:
        return list(between)
    ranks = mesh.size()
    shares = [
        x.detach()[:, : x.shape[1] // ranks].contiguous().requires_grad_(x.requires_grad)
        for x in between[1:-1]
    ]
    return [between[0], *shares, between[-1]]


def whole_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss as a plain tensor on every rank, whatever the model's outputs are."""
    return lambda outputs, targets: whole(loss(outputs, targets))


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor with all its parts, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def complete(parameters: Sequence[nn.Parameter]) -> None:
    """Add up what ranks hold of the gradient of a parameter that each has whole.

    A norm on a share of the sequence leaves such parts.
    """
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
            parameter.grad = grad.redistribute(placements=parameter.placements)
