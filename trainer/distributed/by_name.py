"""Tensors of a model, chosen by patterns of their names: TRAINER_FREEZE and TRAINER_INIT_SKIP.

note = freeze(model, "conv1.*,layer1.*")
"""

from collections.abc import Collection
from fnmatch import fnmatchcase

from torch import nn

from trainer.config.exits import Exit, Fault

_SHOWN = 5  # names in a message


def freeze(model: nn.Module, patterns: str) -> str:
    """Freeze the parameters that match; return a line for the log.

    Raises Fault(64) if a pattern matches none, or if none is left to train.
    """
    named = dict(model.named_parameters(remove_duplicate=False))  # a tied weight has several names
    for name in chosen("TRAINER_FREEZE", patterns, model, names=named):
        named[name].requires_grad_(False)
    every = list(model.parameters())
    left = [p for p in every if p.requires_grad]
    if not left:
        raise Fault(Exit.CONFIG, f"TRAINER_FREEZE={patterns}: leaves nothing to train")
    numbers = [sum(p.numel() for p in these) for these in (left, every)]
    return (
        f"trained: {len(left)} of {len(every)} tensors, {numbers[0]:,} of {numbers[1]:,} parameters"
    )


def chosen(setting: str, patterns: str, model: nn.Module, *, names: Collection[str]) -> set[str]:
    """Return the names that match a setting's patterns. Raises Fault(64) if a pattern matches none."""
    found = set[str]()
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        matching = {name for name in names if fnmatchcase(name, pattern)}
        if not matching:
            raise Fault(
                Exit.CONFIG,
                f"{setting}={pattern!r}: no tensor of model {type(model).__name__} has such a name; it "
                f"has {some(names)}",
            )
        found |= matching
    return found


def some(names: Collection[str]) -> str:
    """Return the first names, and the number of the others."""
    shown = ", ".join([*names][:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
