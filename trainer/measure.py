"""Measures what the built-in tasks' models cost and writes `trainer/plan/costs.json`.

python -m trainer.measure
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer import tasks
from trainer.catalogue import catalogue
from trainer.data.sets import InMemory
from trainer.footprint import Activations
from trainer.models import chain
from trainer.plan import costs
from trainer.settings import Settings

_SAMPLES = 8  # enough that what does not grow with the batch is lost in rounding


def pieces_of(task: tasks.Task) -> list[costs.Piece]:
    """Return what the pieces of the task's model cost, the loss as the last of them."""
    example = getattr(task, "example", None)  # where the data may not be at hand
    if example is not None:
        inputs, targets = example(_SAMPLES)
    else:
        inputs, targets = cast("InMemory", task.data(train=True)).batch(torch.arange(_SAMPLES))
    found = []
    with FakeTensorMode() as fake:
        model = task.model()
        x: Tensor = fake.from_tensor(inputs)
        wanted = fake.from_tensor(targets)
        activations = Activations()
        with activations.of(model):
            for piece in chain.pieces_of(model):
                before = activations.now
                x = piece.run(x)
                found.append(_piece(piece, model, activations.now - before, x))
            before = activations.now
            loss = task.loss(x, wanted).sum()
            kept = (activations.now - before) // _SAMPLES
            found.append(costs.Piece(name="loss", shapes=[], kept=kept, output=0))
            del loss
    return found


def _piece(piece: chain.Piece, model: nn.Module, kept: int, output: Tensor) -> costs.Piece:
    return costs.Piece(
        name="+".join(piece.modules),
        shapes=[
            tuple(parameter.shape)
            for name in piece.modules
            for parameter in model.get_submodule(name).parameters()
        ],
        kept=kept // _SAMPLES,
        output=output.numel() * output.element_size() // _SAMPLES,
    )


def sheet() -> dict[str, list[costs.Piece]]:
    """Return the pieces of every built-in task's model, if it is always the same."""
    return {
        name: pieces_of(tasks.load(Settings.model_validate({"task": name})))
        for name, entry in catalogue().items()
        if not entry.varies
    }


if __name__ == "__main__":
    costs.FILE.write_bytes(costs.text_of(sheet()))
