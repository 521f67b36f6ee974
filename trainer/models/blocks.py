"""A model's blocks: the modules that are each sharded, recomputed or compiled as a whole."""

from collections.abc import Iterator

from torch import nn


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the children that have parameters; of a ModuleList or ModuleDict, its members."""
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from blocks(child)
        elif any(True for _ in child.parameters()):
            yield child
