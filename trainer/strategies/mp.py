"""Model parallel: contiguous stages of the layers on the devices of one process.

The stages are cut by measured cost (`trainer/models/stages.py`). Each device has its own queue, so
micro-batches overlap: a backward pass is queued when there are enough forward passes to keep every
device busy. On the CPU nothing overlaps.

    TRAINER_MODE=mp python -m trainer
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from trainer.data.sets import Batch
from trainer.distributed.precision import autocast
from trainer.distributed.tensors import map_tensors, move
from trainer.models.stages import Stage, cut
from trainer.strategies import Context, Strategy, single, weighted_loss


def build(model: nn.Module, context: Context) -> Strategy:
    runtime = context.runtime
    devices = _devices(runtime.device)
    plan = cut(model, context.example().inputs, runtime.sizing.stages or max(2, len(devices)))
    count = len(plan.stages)
    places = [devices[number * len(devices) // count] for number in range(count)]
    precision = partial(autocast, context.settings, runtime.device)
    stages = [Stage(model, plan.pieces_of(n), precision=precision) for n in range(count)]
    for stage, place in zip(stages, places, strict=True):
        move(stage, place)

    def forward(inputs: Tensor) -> Tensor:
        x = inputs
        for stage, place in zip(stages, places, strict=True):
            x = stage(x.to(place, non_blocking=True))
        return x

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        losses: list[Tensor] = []
        under_way: deque[Tensor] = deque()
        for batch in micro_batches:
            if len(under_way) == 2 * count:
                under_way.popleft().backward()
            outputs = forward(batch.inputs)
            at_end = partial(Tensor.to, device=places[-1], non_blocking=True)
            targets, weights = map_tensors(at_end, (batch.targets, batch.weights))
            loss = weighted_loss(outputs, Batch(batch.inputs, targets, weights), context)
            losses.append(loss.detach())
            under_way.append(loss / weight)
        for loss in under_way:
            loss.backward()
        return torch.stack(losses).sum()

    return replace(
        single.build(model, context),
        step=step,
        forward=lambda inputs: forward(inputs).to(runtime.device),
        notes={"stages": plan.describe(), "devices": ", ".join(map(str, places))},
    )


def _devices(first: torch.device) -> list[torch.device]:
    """Return all devices of the kind of `first`."""
    if first.type == "cpu":
        return [first]
    return [torch.device(first.type, n) for n in range(torch.accelerator.device_count())]
