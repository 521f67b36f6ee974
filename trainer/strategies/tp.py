"""Tensor parallel: each layer's weights are split over ranks that compute one micro-batch together.

A layer's first matrix is split by columns and its second by rows (Shoeybi et al., 2019). Norms compute
on shares of the sequence (Korthikanti et al., 2022). The split uses torch's DTensor. The model's
`tensor_plan()` gives the style of each layer (`trainer/models/tensor_plan.py`). Other data axes of the
mesh shard each weight further (dp_shard) or replicate it (dp_replicate).

    TRAINER_TASK=charlm-gpt TRAINER_MODE=tp torchrun --nproc-per-node 2 -m trainer
    TRAINER_MODE=tp TRAINER_MESH=dp_shard=2,tp=2 torchrun --nproc-per-node 4 -m trainer
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.data.sets import Batch, Nested
from trainer.data.task_contract import blamed_on, kind_of
from trainer.models.blocks import tied
from trainer.models.compare import outputs
from trainer.models.tensor_plan import TensorPlan, Whole
from trainer.plan.sizing import check_divisible
from trainer.strategies import (
    Context,
    Strategy,
    accumulate,
    broadcast_buffers,
    fsdp,
    inference,
    single,
)


def build(model: nn.Module, context: Context) -> Strategy:
    settings, mesh = context.settings, context.mesh
    before = outputs(model, context.example().inputs)
    parallelize(model, mesh["tp"], settings, modules=[*dict(model.named_modules())])
    replicas = context.runtime.sizing.batches.replicas
    sharded = fsdp.shard(model, fsdp.data_mesh(mesh), settings) if replicas > 1 else None
    parameters = list(model.parameters())
    forward = inference(model, context)
    gathered = replace(context, loss=whole_loss(context.loss))

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        with loss_context(settings):
            loss = accumulate(
                model,
                micro_batches,
                gathered,
                # The reduce-scatter averages over the replicas, while the loss is a mean over the batch.
                scale=replicas / weight,
                no_sync=fsdp.no_sync(sharded) if sharded else contextlib.nullcontext,
            )
        sum_partial_gradients(parameters)
        return loss

    return replace(
        single.build(model, context),
        step=step,
        forward=lambda inputs: whole(forward(inputs)),
        synchronize=lambda: broadcast_buffers(model, mesh),
        before=before,
    )


def parallelize(
    module: nn.Module, mesh: DeviceMesh, settings: Settings, *, modules: Sequence[str]
) -> None:
    """Split the layers of `module` over the one-dimensional `mesh`, as the model's plan says.

    `modules` are the names of the whole model's, of which a stage of a pipeline has only some. Raises
    Fault(64) when the model has no plan or a wrong one, has tied weights, or cannot be divided by the
    number of ranks.
    """
    tensor_plan = getattr(module, "tensor_plan", None)
    if tensor_plan is None:
        raise Fault(
            Exit.CONFIG,
            f"task {settings.task}: its model {type(module).__name__} cannot be split over the axis tp: "
            "it has no method tensor_plan(); see trainer/models/tensor_plan.py",
        )
    for names in tied(module).values():
        raise Fault(
            Exit.CONFIG,
            f"task {settings.task}: its model {type(module).__name__} ties {' and '.join(names)}; tied "
            "weights cannot be split over the axis tp",
        )
    with blamed_on(settings.task, "tensor_plan()"):
        plan = tensor_plan(
            sequence_parallel=settings.sequence_parallel, loss_parallel=settings.loss_parallel
        )
    if not isinstance(plan, TensorPlan):
        raise Fault(
            Exit.CONFIG,
            f"task {settings.task}: tensor_plan() returned a {kind_of(plan)}; wanted: a TensorPlan of "
            "trainer.models.tensor_plan",
        )
    if unused := plan.unused(modules):
        raise Fault(
            Exit.CONFIG,
            f"task {settings.task}: tensor_plan() has styles for {unused[0]}, and its model has no such "
            f"module; it has {', '.join(name for name in modules if name and '.' not in name)}",
        )
    check_divisible(plan.divisible, mesh.size(), task=settings.task)
    for name, part in list(module.named_modules()):
        if any(True for _ in part.parameters(recurse=False)):
            for style in plan.styles_for(name) or [Whole()]:
                with blamed_on(settings.task, f"{type(style).__name__} for the module {name}"):
                    parallelize_module(part, mesh, style)


def loss_context(settings: Settings) -> contextlib.AbstractContextManager[object]:
    """Return the context in which forward, loss and backward passes run."""
    return loss_parallel() if settings.loss_parallel else contextlib.nullcontext()


def shard_borders(borders: Sequence[Tensor], mesh: DeviceMesh, settings: Settings) -> list[Tensor]:
    """Return each rank's part of the tensors at the borders of stages.

    With `sequence_parallel` that is a share of dimension 1; the first inputs and last outputs are whole.
    """
    if not settings.sequence_parallel:
        return list(borders)
    ranks = mesh.size()
    shares = [
        x.detach()[:, : x.shape[1] // ranks].contiguous().requires_grad_(x.requires_grad)
        for x in borders[1:-1]
    ]
    return [borders[0], *shares, borders[-1]]


def whole_loss(loss: Callable[[Tensor, Nested], Tensor]) -> Callable[[Tensor, Nested], Tensor]:
    """Return the loss as a plain tensor on every rank, whatever the model's outputs are."""
    return lambda outputs, targets: whole(loss(outputs, targets))


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor, gathered on every rank if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sum_partial_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Sum a replicated parameter's gradient over the ranks, if each rank has only a term of the sum.

    A norm that computes on a share of the sequence leaves such gradients.
    """
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
            parameter.grad = grad.redistribute(placements=parameter.placements)
