"""torchvision's classification models by name, with random weights."""

import difflib
from typing import Any

from torch import nn

from trainer.config.exits import Exit, Fault


def build(name: str, *, classes: int) -> nn.Module:
    """Return the model `name` with random weights, from images to logits, shape (n, classes).

    Raises Fault(64) when torchvision has no classification model of that name.
    """
    from torchvision import models  # noqa: PLC0415  # as long to import as torch

    names = models.list_models(module=models)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3) or names[:3]
        raise Fault(
            Exit.CONFIG,
            f"TRAINER_MODEL={name!r}: torchvision has no classification model of that name; "
            f"similar names: {', '.join(near)}",
        )
    extra: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):  # a second head would give a second output
        extra = {"aux_logits": False, "init_weights": True}
    model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **extra)
    return model
