"""Compare a model's outputs before and after it is cut or split, so that a mode trains the same model.

before = outputs(model, inputs)
refuse_other(before, outputs(model, inputs, partial(run, pieces)), "model Net: its chain()")
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.exits import Exit, Fault
from trainer.data.sets import Nested
from trainer.distributed.tensors import Kept, leaves, map_tensors
from trainer.distributed.torch_private import FakeTensor

_TOLERANCE = 0.05  # of the largest output: more than TF32 and bfloat16 differ by


def outputs(
    model: nn.Module, inputs: Nested, forward: Callable[[Any], Any] | None = None
) -> Tensor | None:
    """Return what the model, or `forward`, returns in evaluation for the first of `inputs`.

    The model stays as it was. None where that cannot be compared: it raises, which is said where the
    run needs it, it is not one tensor with a row for each sample, it is random in evaluation, too, or
    it is of a dry run.
    """
    device = next(model.parameters()).device
    if any(isinstance(one, FakeTensor) for one in (*model.parameters(), *leaves(inputs))):
        return None
    kept, found = Kept(model), []
    for seed in (0, 1):
        model.eval()
        with suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            one = map_tensors(lambda tensor: tensor[:1].to(device), inputs)
            found.append((forward or model)(one))
        kept.restore()
    if [isinstance(one, Tensor) and one.dim() > 0 for one in found] != [True, True]:
        return None
    return found[0] if torch.equal(*found) else None


def refuse_other(before: Tensor | None, after: Tensor | None, what: str) -> None:
    """Raise Fault(64) if the outputs of `what` are not those that the model had before."""
    if before is None or after is None:
        return
    after = after.to(before.device)
    largest = before.abs().max()
    apart = (before - after).abs().max() if before.shape == after.shape else largest
    if apart > _TOLERANCE * largest:
        raise Fault(
            Exit.CONFIG,
            f"{what} gives other outputs than forward() for the same inputs: they differ by {apart:.3g} "
            f"of at most {largest:.3g}",
        )
