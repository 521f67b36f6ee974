"""Compare a model's outputs before and after it is cut or split, so that a mode trains the same model.

before = outputs(model, lambda: model(inputs))
refuse_other(before, outputs(model, lambda: run(pieces, inputs)), "model Net: its chain()")
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.exits import Exit, Fault
from trainer.distributed.tensors import Kept
from trainer.distributed.torch_private import FakeTensor

_TOLERANCE = 0.05  # of the largest output: more than TF32 and bfloat16 differ by


def outputs(model: nn.Module, forward: Callable[[], Any]) -> Tensor | None:
    """Return what `forward` returns in evaluation, and leave the model as it was.

    None where it cannot be compared: it raises, which is said where the run needs it, it is not one
    tensor, it is random in evaluation, too, or it is of a dry run.
    """
    if any(isinstance(one, FakeTensor) for one in model.parameters()):
        return None
    kept, found = Kept(model), []
    for seed in (0, 1):
        model.eval()
        with suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            found.append(forward())
        kept.restore()
    if [isinstance(one, Tensor) for one in found] != [True, True]:
        return None
    return found[0] if torch.equal(*found) else None


def refuse_other(before: Tensor | None, after: Tensor | None, what: str) -> None:
    """Raise Fault(64) if the outputs of `what` are not those that the model had before."""
    if before is None or after is None:
        return
    largest = before.abs().max()
    apart = (before - after).abs().max() if before.shape == after.shape else largest
    if apart > _TOLERANCE * largest:
        raise Fault(
            Exit.CONFIG,
            f"{what} gives other outputs than forward() for the same inputs: they differ by {apart:.3g} "
            f"of at most {largest:.3g}",
        )
