"""Pipeline parallel: contiguous stages of the layers on several ranks; micro-batches flow through them.

The stages are cut by measured cost (`trainer/models/stages.py`). A schedule of
torch.distributed.pipelining orders the passes (`trainer/plan/schedules.py`). If the mesh also has data
axes, each stage is replicated (dp_replicate) or sharded (dp_shard) over them, and its gradients are
averaged once per step. An axis tp splits each layer of a stage (`trainer/strategies/tp.py`).

    TRAINER_MODE=pp torchrun --nproc-per-node 2 -m trainer
    TRAINER_MODE=pp TRAINER_MESH=pp=2,dp_shard=2 torchrun --nproc-per-node 4 -m trainer
    TRAINER_MODE=pp TRAINER_MESH=pp=2,dp_shard=2,tp=2 torchrun --nproc-per-node 8 -m trainer
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules

from trainer.config.environment import variable
from trainer.config.exits import Exit, Fault
from trainer.data.sets import Batch
from trainer.distributed import optim
from trainer.distributed.precision import autocast
from trainer.distributed.tensors import local_part, move
from trainer.models.stages import Cut, Stage, cut, keep_pieces
from trainer.plan.schedules import SCHEDULES, holder, stages_of
from trainer.strategies import Context, Strategy, broadcast_buffers, clip, fsdp, tp, weighted_loss


def build(model: nn.Module, context: Context) -> Strategy:
    settings, mesh, sizes = context.settings, context.mesh, context.runtime.sizing.mesh
    name, group = settings.pipeline_schedule, mesh.get_group("pp")
    check_torch(name, is_dry_run=context.runtime.backend == "fake")
    own = optim.of_whole(model, settings, context.own)
    modules = [*dict(model.named_modules())]
    plan = cut(model, context.example().inputs, context.runtime.sizing.stages or 1)
    numbers = stages_of(name, mesh.get_local_rank("pp"), sizes["pp"], len(plan.stages))
    keep_pieces(model, [piece for n in numbers for piece in plan.pieces_of(n)], plan.pieces)
    move(model, context.runtime.device)
    if sizes["tp"] > 1:
        tp.parallelize(model, mesh["tp"], settings, modules=modules)
        context = replace(context, loss=tp.whole_loss(context.loss))
        plan = replace(plan, borders=tp.shard_borders(plan.borders, mesh["tp"], settings))
    precision = partial(autocast, settings, context.runtime.device)
    stages = {
        n: Stage(model, plan.pieces_of(n), precision=precision, dtype=plan.borders[n + 1].dtype)
        for n in numbers
    }
    if sizes["dp_shard"] > 1:
        # Otherwise every micro-batch would gather the parameters again, which takes too much time.
        shared = settings.model_copy(update={"reshard": False})
        for stage in stages.values():
            fsdp.shard(stage, fsdp.data_mesh(mesh), shared)
    pipeline = _Pipeline(model, stages, plan, context)
    parameters = list(model.parameters())
    return Strategy(
        module=model,
        optimizer=optim.build(model, settings, own),
        step=pipeline.step,
        clip=lambda norm: clip(parameters, norm, group=group),
        forward=pipeline.forward,
        synchronize=lambda: broadcast_buffers(model, mesh),
        stages=[*stages.values()],
        notes={"schedule": name, "stages": plan.describe()},
        before=plan.outputs if sizes["tp"] > 1 else None,
    )


def check_torch(schedule: str, *, is_dry_run: bool) -> None:
    """Refuse what the installed torch cannot do yet. Raises Fault(64)."""
    have = torch.__version__
    if SCHEDULES[schedule].split and have < "2.13":  # pytorch/pytorch 180952
        raise Fault(
            Exit.CONFIG,
            f"{variable('pipeline_schedule')}={schedule}: needs torch 2.13 or newer; in torch {have} "
            "the gradient of a weight that a stage uses several times is wrong; use interleaved-1f1b",
        )
    if is_dry_run and have < "2.14":
        raise Fault(
            Exit.CONFIG,
            f"{variable('dry_run')}: for pipeline stages needs torch 2.14 or newer; in torch {have} a "
            "stage first waits for values from another, which a dry run does not have",
        )


class _Pipeline:
    """This rank's stages, by number, and torch's schedule that runs them.

    `_micro_batches`, `_scale` and `_losses` belong to the current step. They are attributes because the
    schedule calls the loss with outputs only.
    """

    def __init__(
        self, model: nn.Module, stages: Mapping[int, Stage], plan: Cut, context: Context
    ) -> None:
        self._model, self._stages, self._context = model, stages, context
        self._parameters = list(model.parameters())
        self._borders, self._count = plan.borders, len(plan.stages)
        self._sharded = context.runtime.sizing.mesh["dp_shard"] > 1
        self._micro_batches: Sequence[Batch] = ()
        self._scale = 1.0
        self._losses: list[Tensor] = []
        # The shapes are given. To infer them, torch makes a trial run, which changes running statistics.
        ends = [
            PipelineStage(
                stage,
                number,
                self._count,
                context.runtime.device,
                input_args=plan.borders[number],
                output_args=plan.borders[number + 1],
                group=context.mesh.get_group("pp"),
            )
            for number, stage in stages.items()
        ]
        schedule = SCHEDULES[context.settings.pipeline_schedule]
        self._schedule = getattr(schedules, schedule.kind)(
            ends if schedule.least > 1 else ends[0],
            context.runtime.sizing.batches.accumulation,
            loss_fn=self._loss,
            scale_grads=False,
        )

    def step(self, micro_batches: Sequence[Batch], weight: float) -> Tensor:
        """Compute the gradients of a step; return the sum of losses, 0 if another rank has them."""
        context, first, last = self._context, 0 in self._stages, self._count - 1 in self._stages
        self._micro_batches, self._losses = micro_batches, []
        # fsdp averages over the replicas, while the loss is a mean over the whole global batch.
        self._scale = (context.runtime.sizing.batches.replicas if self._sharded else 1) / weight
        if not self._sharded:  # as DDP does before a forward pass
            broadcast_buffers(self._model, context.mesh)
        # The schedule splits its inputs into the same number of parts again.
        inputs = (torch.cat([batch.inputs for batch in micro_batches]),) if first else ()
        # Our loss does not use them, but a schedule needs targets of this length.
        targets = torch.cat([batch.weights for batch in micro_batches]) if last else None
        try:
            with tp.loss_context(context.settings):
                self._schedule.step(*inputs, target=targets, return_outputs=False)
        except RuntimeError as error:
            # torch names the stage and the shapes of its tensors; what happened is the cause.
            raise error.__cause__ or error from None
        tp.sum_partial_gradients(self._parameters)
        if not self._sharded:
            _sum_over_replicas(self._parameters, context.mesh)
        self._micro_batches = ()
        return torch.stack(self._losses).sum() if last else torch.zeros(())

    def _loss(self, outputs: Tensor, _: Tensor) -> Tensor:
        # Schedules compute the losses in the order of the micro-batches; torch's code relies on it too.
        batch = self._micro_batches[len(self._losses)]
        loss = weighted_loss(outputs, batch, self._context)
        self._losses.append(loss.detach())
        return loss * self._scale

    def forward(self, inputs: Tensor) -> Tensor | None:
        """Pass a batch through all stages; return the outputs on the rank of the last stage.

        It sends and receives by itself, because torch's zbv schedule cannot run without a backward pass
        (torch 2.15). A smaller batch is padded, because stages pass tensors of one shape. Raises
        Fault(64) for inputs of another shape, as of a task's `sample` or of batches padded by `collate`.
        """
        most, *shape = self._borders[0].shape
        if not 0 < (count := len(inputs)) <= most or list(inputs.shape[1:]) != shape:
            raise Fault(
                Exit.CONFIG,
                f"task {self._context.settings.task}: the model gets inputs of shape "
                f"{tuple(inputs.shape)}; stages pass at most {most} samples of shape {tuple(shape)}, so "
                "all batches, and what sample() gives, need this shape",
            )
        if count < most:
            inputs = torch.cat([inputs, inputs[-1:].expand(most - count, *shape)])
        name, group = self._context.settings.pipeline_schedule, self._context.mesh.get_group("pp")
        ranks = dist.get_world_size(group)
        x = inputs
        for number, stage in self._stages.items():
            if number and number - 1 not in self._stages:
                x = torch.empty_like(self._borders[number], device=self._context.runtime.device)
                before = holder(name, number - 1, ranks, self._count)
                dist.recv(x, group=group, group_src=before)
            x = stage(x)
            if number + 1 < self._count and number + 1 not in self._stages:
                self._check(x, self._borders[number + 1])
                after = holder(name, number + 1, ranks, self._count)
                dist.send(x, group=group, group_dst=after)
        return tp.whole(x)[:count] if self._count - 1 in self._stages else None

    def _check(self, x: Tensor, border: Tensor) -> None:
        """Raise Fault(64) unless `x` has the shape that the next stage expects."""
        if x.shape != border.shape:
            settings = self._context.settings
            shares = self._context.runtime.sizing.mesh["tp"] > 1 and settings.sequence_parallel
            hint = "each rank's share of dimension 1; or set TRAINER_SEQUENCE_PARALLEL=false"
            raise Fault(
                Exit.CONFIG,
                f"task {settings.task}: a stage's output has the shape {tuple(x.shape)}, and the next "
                f"stage expects {tuple(border.shape)}{', ' + hint if shares else ''}",
            )


def _sum_over_replicas(parameters: Sequence[nn.Parameter], mesh: DeviceMesh) -> None:
    """Sum the gradients of a stage over its replicas."""
    if mesh["dp_replicate"].size() == 1:
        return
    group = mesh.get_group("dp_replicate")
    pending = [
        dist.all_reduce(local_part(parameter.grad), group=group, async_op=True)
        for parameter in parameters
        if parameter.grad is not None
    ]
    for work in pending:
        work.wait()
