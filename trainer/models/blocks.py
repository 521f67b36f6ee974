"""A model's blocks: what is sharded, recomputed or compiled as one."""

from collections.abc import Iterator

from torch import nn


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model's children that have parameters, in place of a list of layers its members."""
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from blocks(child)
        elif any(True for _ in child.parameters()):
            yield child
