"""One process, one device: every other mode is compared with this one.

TRAINER_MODE=single python -m trainer
"""

from collections.abc import Sequence

from torch import Tensor, nn

from trainer.data.sets import Batch
from trainer.distributed import optim
from trainer.strategies import Context, Strategy, accumulate, clip, inference


def build(model: nn.Module, context: Context) -> Strategy:
    parameters = list(model.parameters())

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        return accumulate(model, micro_batches, context, scale=1 / weight)

    return Strategy(
        module=model,
        optimizer=optim.build(model, context.settings, context.own),
        step=step,
        clip=lambda norm: clip(parameters, norm),
        forward=inference(model, context),
    )
