"""Measures what the built-in tasks' models cost and writes `trainer/plan/costs.json`.

python -m trainer.tools.measure
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer import tasks
from trainer.config.catalogue import catalogue
from trainer.config.settings import Settings
from trainer.data.sets import InMemory
from trainer.models import chain, stages
from trainer.models.footprint import Activations, Footprint
from trainer.models.recompute import recompute_blocks
from trainer.plan import costs
from trainer.strategies import tp

_SAMPLES = 8  # enough that what does not grow with the batch is lost in rounding
_RANKS = (2, 4)  # of tp: two points of a line

_Step = Callable[[Tensor], Tensor]


def pieces_of(task: tasks.Task) -> list[costs.Piece]:
    """Return what the pieces of the task's model cost, the loss as the last of them."""
    example = getattr(task, "example", None)  # where the data may not be at hand
    if example is not None:
        inputs, targets = example(_SAMPLES)
    else:
        inputs, targets = cast("InMemory", task.data(train=True)).batch(torch.arange(_SAMPLES))
    cuts = [*stages.measure(task.model(), inputs)[0], stages.Cost(0, 0, 0)]
    with FakeTensorMode() as fake:
        batch = fake.from_tensor(inputs), fake.from_tensor(targets)
        model = task.model()
        names, steps = _steps(model, task.loss, batch[1])
        kept, outputs = _kept(model, steps, batch[0])
        alone = _alone(model, steps, [batch[0], *outputs])
        recomputing = task.model()
        recompute_blocks(recomputing)
        recomputed, _ = _kept(recomputing, _steps(recomputing, task.loss, batch[1])[1], batch[0])
        shapes = [[tuple(p.shape) for p in parameters] for parameters in _parameters(model)]
    divisible: list[int] = []
    split: dict[int, list[int]] = {}
    splits: dict[str, list[costs.Split]] = {}
    if isinstance(model, tp.Splittable):
        plan = model.tensor_plan(sequence_parallel=True, loss_parallel=False)
        divisible = list(plan.divisible.values())
        split, splits = _splits(task, inputs, targets)
    return [
        costs.Piece(
            name=name,
            shapes=shapes[n],
            flops=cuts[n].flops // _SAMPLES,
            weighed=cuts[n].activations // _SAMPLES,
            kept=kept[n],
            alone=alone[n],
            recomputed=recomputed[n],
            output=outputs[n].nbytes // _SAMPLES if n + 1 < len(names) else 0,
            split=split.get(n, []),
            splits={variant: found[n] for variant, found in splits.items()},
            divisible=divisible,
        )
        for n, name in enumerate(names)
    ]


def _steps(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], targets: Tensor
) -> tuple[list[str], list[_Step]]:
    """Return the pieces' names and what each does; the last one is the loss."""
    pieces = chain.pieces_of(model)
    steps: list[_Step] = [piece.run for piece in pieces]
    return (
        [*("+".join(piece.modules) for piece in pieces), "loss"],
        [*steps, lambda outputs: loss(outputs, targets).sum()],
    )


def _parameters(model: nn.Module) -> list[list[nn.Parameter]]:
    pieces = chain.pieces_of(model)
    return [
        *(
            [p for n in piece.modules for p in model.get_submodule(n).parameters()]
            for piece in pieces
        ),
        [],
    ]


def _kept(model: nn.Module, steps: list[_Step], x: Tensor) -> tuple[list[int], list[Tensor]]:
    """Return what each step keeps of a sample beside what is kept already, and what it returns."""
    activations = Activations()
    kept, outputs = [], []
    with activations.of(model):
        for step in steps:
            before = activations.now
            x = step(x)
            kept.append((activations.now - before) // _SAMPLES)
            outputs.append(x)
    return kept, outputs


def _alone(model: nn.Module, steps: list[_Step], inputs: list[Tensor]) -> list[int]:
    """Return what each step keeps of a sample by itself."""
    kept = []
    for step, x in zip(steps, inputs, strict=False):
        activations = Activations()
        with activations.of(model):
            out = step(_cut_off(x))
        kept.append(activations.peak // _SAMPLES)
        del out
    return kept


def _cut_off(x: Tensor) -> Tensor:
    return x.detach().requires_grad_(x.is_floating_point())


def _splits(
    task: tasks.Task, inputs: Tensor, targets: Tensor
) -> tuple[dict[int, list[int]], dict[str, list[costs.Split]]]:
    """Return how tp splits the parameters of each piece, and what each keeps and sends, by variant."""
    dimensions: dict[int, list[int]] = {}
    variants: dict[str, list[costs.Split]] = {}
    for sequence in (False, True):
        for loss in (False, True):
            settings = Settings(sequence_parallel=sequence, loss_parallel=loss)
            points = []
            for ranks in _RANKS:
                with _world(ranks) as mesh, FakeTensorMode() as fake:
                    batch = fake.from_tensor(inputs), fake.from_tensor(targets)
                    model = task.model()
                    tp.parallelize(model, mesh, settings)
                    points.append(_split(task, model, batch, settings))
                    dimensions = {
                        n: [_dimension(p) for p in parameters]
                        for n, parameters in enumerate(_parameters(model))
                    }
            name = costs.split_name(sequence_parallel=sequence, loss_parallel=loss)
            variants[name] = [_line(*pair) for pair in zip(*points, strict=True)]
    return dimensions, variants


def _split(
    task: tasks.Task, model: nn.Module, batch: tuple[Tensor, Tensor], settings: Settings
) -> list[tuple[int, dict[str, int]]]:
    """Return what each piece keeps of a sample on one rank, and what leaves it."""
    _, steps = _steps(model, tp.whole_loss(task.loss), batch[1])
    found = []
    with tp.loss_context(settings):
        kept, outputs = _kept(model, steps, batch[0])
        for n, (step, x) in enumerate(zip(steps, [batch[0], *outputs], strict=False)):
            with Footprint() as footprint:
                out = step(_cut_off(x))
                out.backward(torch.ones_like(out))
            found.append((kept[n], {name: b // _SAMPLES for name, b in footprint.sent.items()}))
    return found


def _line(two: tuple[int, dict[str, int]], four: tuple[int, dict[str, int]]) -> costs.Split:
    """Return what lies under the figures of 2 and of 4 ranks: what all keep, and what they share."""
    shared = max(0, 4 * (two[0] - four[0]))
    sent = {name: 2 * size for name, size in two[1].items() if size}
    return costs.Split(whole=two[0] - shared // 2, shared=shared, sent=sent)


def _dimension(parameter: nn.Parameter) -> int:
    if not isinstance(parameter, DTensor):
        return -1
    (place,) = parameter.placements
    return place.dim if isinstance(place, Shard) else -1


@contextlib.contextmanager
def _world(ranks: int) -> Iterator[DeviceMesh]:
    """Be the first of some ranks that are not there."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    finally:
        dist.destroy_process_group()


def sheet() -> dict[str, list[costs.Piece]]:
    """Return the pieces of every built-in task's model, if it is always the same."""
    return {
        name: pieces_of(tasks.load(Settings.model_validate({"task": name})))
        for name, entry in catalogue().items()
        if not entry.varies
    }


if __name__ == "__main__":
    costs.FILE.write_bytes(costs.text_of(sheet()))
