"""Pipeline parallel: contiguous stages of the layers over ranks, micro-batches flowing through them.

The stages are cut by measured cost (`trainer/models/stages.py`), the order of the passes is a schedule
of torch.distributed.pipelining (`trainer/plan/schedules.py`). Where the mesh also has data axes, each
stage is replicated (dp_replicate) or sharded (dp_shard) over them, and its gradients are averaged once
a step. An axis tp splits each layer of a stage (`trainer/strategies/tp.py`).

    TRAINER_MODE=pp torchrun --nproc-per-node 2 -m trainer
    TRAINER_MODE=pp TRAINER_MESH=pp=2,dp_shard=2 torchrun --nproc-per-node 4 -m trainer
    TRAINER_MODE=pp TRAINER_MESH=pp=2,dp_shard=2,tp=2 torchrun --nproc-per-node 8 -m trainer
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules

from trainer.data.sets import Batch
from trainer.distributed import optim
from trainer.distributed.precision import autocast
from trainer.models.stages import Cut, Stage, cut, keep_only, put
from trainer.plan.schedules import SCHEDULES, holder, stages_of
from trainer.strategies import (
    Context,
    Strategy,
    clip,
    fsdp,
    local,
    share_buffers,
    single,
    tp,
    weighted_loss,
)


def build(model: nn.Module, context: Context) -> Strategy:
    runtime, settings = context.runtime, context.settings
    mesh = runtime.mesh
    if mesh is None:  # a world of one has no other rank to pass a micro-batch on to
        return single.build(model.to(runtime.device), context)
    plan = cut(model, context.example(), runtime.sizing.stages or 1)
    held = stages_of(
        settings.pipeline_schedule, mesh.get_local_rank("pp"), mesh["pp"].size(), len(plan.stages)
    )
    keep_only(model, [piece for stage in held for piece in plan.of(stage)], of=plan.pieces)
    put(model, runtime.device)
    if runtime.sizing.mesh["tp"] > 1:
        tp.parallelize(model, mesh["tp"], settings)
        context = replace(context, loss=tp.whole_loss(context.loss))
        plan = replace(plan, borders=tp.borders(plan.borders, mesh["tp"], settings))
    stages = {number: _stage(model, plan, number, context) for number in held}
    sharded = runtime.sizing.mesh["dp_shard"] > 1
    if sharded:
        # Gathered anew for every micro-batch, the parameters would travel far more than they compute.
        shared = settings.model_copy(update={"reshard": False})
        for stage in stages.values():
            fsdp.shard(stage, fsdp.data_mesh(mesh), shared)
    parameters = list(model.parameters())
    group = mesh.get_group("pp")
    first, last = 0 in held, len(plan.stages) - 1 in held
    now: list[Batch] = []
    losses: list[Tensor] = []
    scale = 1.0

    def loss_of(outputs: Tensor, _: Tensor) -> Tensor:
        # Schedules take the losses in the micro-batches' order; torch's own rely on it too.
        loss = weighted_loss(outputs, now[len(losses)], context)
        losses.append(loss.detach())
        return loss * scale

    accumulation = runtime.sizing.batches.accumulation
    schedule = _schedule(stages, plan, context, count=accumulation, loss=loss_of)

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        nonlocal scale
        # fsdp averages over the replicas, while the loss is a mean over the whole global batch.
        scale = (runtime.sizing.batches.replicas if sharded else 1) / weight
        now[:] = micro_batches
        losses.clear()
        if not sharded:  # as DDP does before a forward pass
            share_buffers(model, mesh)
        # The schedule cuts what it is given into as many parts again.
        inputs = (torch.cat([batch.inputs for batch in micro_batches]),) if first else ()
        targets = torch.cat([batch.targets for batch in micro_batches]) if last else None
        with tp.computing(settings):
            schedule.step(*inputs, target=targets, return_outputs=False)
        tp.complete(parameters)
        if not sharded:
            _add_up(parameters, mesh)
        now.clear()
        return torch.stack(losses).sum() if last else torch.zeros(())

    return Strategy(
        module=model,
        optimizer=optim.build(parameters, settings),
        step=step,
        clip=lambda norm: clip(parameters, norm, group=group),
        forward=partial(_forward, stages, plan.borders, context),
        settle=lambda: share_buffers(model, mesh),
        notes={"schedule": settings.pipeline_schedule, "stages": plan.describe()},
    )


def _stage(model: nn.Module, plan: Cut, number: int, context: Context) -> Stage:
    return Stage(
        model,
        plan.of(number),
        precision=partial(autocast, context.settings, context.runtime.device),
        dtype=plan.borders[number + 1].dtype,
    )


def _schedule(
    stages: dict[int, Stage],
    plan: Cut,
    context: Context,
    *,
    count: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Any:
    """Return torch's schedule of `count` micro-batches over this rank's stages.

    The shapes are told, not inferred: nothing is run on trial, which a running statistic would count.
    """
    mesh, device = context.runtime.mesh, context.runtime.device
    ends = [
        PipelineStage(
            stage,
            number,
            len(plan.stages),
            device,
            input_args=plan.borders[number],
            output_args=plan.borders[number + 1],
            group=mesh.get_group("pp") if mesh else None,
        )
        for number, stage in stages.items()
    ]
    schedule = SCHEDULES[context.settings.pipeline_schedule]
    make = getattr(schedules, schedule.kind)
    return make(ends if schedule.least > 1 else ends[0], count, loss_fn=loss, scale_grads=False)


def _forward(
    stages: dict[int, Stage], borders: Sequence[Tensor], context: Context, inputs: Tensor
) -> Tensor | None:
    """Pass a batch through all stages; return the outputs on the rank of the last stage.

    By hand: torch's zbv schedule cannot run without a backward pass (2.15).
    """
    name, mesh = context.settings.pipeline_schedule, context.runtime.mesh
    group = mesh.get_group("pp") if mesh else None
    count = len(borders) - 1
    x = inputs
    for number, stage in stages.items():
        if number and number - 1 not in stages:
            x = torch.empty_like(borders[number], device=context.runtime.device)
            before = holder(name, number - 1, dist.get_world_size(group), count)
            dist.recv(x, group=group, group_src=before)
        x = stage(x)
        if number + 1 < count and number + 1 not in stages:
            after = holder(name, number + 1, dist.get_world_size(group), count)
            dist.send(x, group=group, group_dst=after)
    return tp.whole(x) if count - 1 in stages else None


def _add_up(parameters: Sequence[nn.Parameter], mesh: DeviceMesh) -> None:
    """Sum the gradients over a stage's replicas."""
    if mesh["dp_replicate"].size() == 1:
        return
    group = mesh.get_group("dp_replicate")
    pending = [
        dist.all_reduce(local(parameter.grad), group=group, async_op=True)
        for parameter in parameters
        if parameter.grad is not None
    ]
    for work in pending:
        work.wait()
