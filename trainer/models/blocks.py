"""A model's blocks: the modules that are each sharded, recomputed or compiled as a whole.

for block in blocks(model): ...
names = tied(model)     # of parameters that several modules use, and so no block alone
"""

from collections.abc import Iterator, Sequence

from torch import nn

_CHOSEN = "chosen_as_a_block"  # an attribute, which a part of the model keeps when the model is cut


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return what `choose` has chosen, else the members of the model's lists of layers at any depth.

    A list is a ModuleList, a ModuleDict, or a Sequential of layers of one kind. A child without a list
    is a block; what is within a block is not looked at.
    """
    chosen = [module for module in model.modules() if is_chosen(module)]
    return chosen or list(dict.fromkeys(_blocks(model)))


def choose(chosen: Sequence[nn.Module]) -> None:
    """Make these the blocks of the model that has them."""
    for module in chosen:
        setattr(module, _CHOSEN, True)


def is_chosen(module: nn.Module) -> bool:
    """Return whether `choose` has made it a block."""
    return hasattr(module, _CHOSEN)


def tied(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {parameter: several for parameter, several in names.items() if len(several) > 1}


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if _is_list(child):
            yield from _members(child)
        elif any(_is_list(part) and _repeats(part) for part in child.modules()):
            yield from _blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


def _members(layers: nn.Module) -> Iterator[nn.Module]:
    for member in layers.children():
        if _is_list(member):
            yield from _members(member)
        elif any(True for _ in member.parameters()):
            yield member


def _is_list(module: nn.Module) -> bool:
    """Return whether its members are blocks. A Sequential of plain layers is one block itself."""
    return isinstance(module, nn.ModuleList | nn.ModuleDict) or (
        isinstance(module, nn.Sequential) and _repeats(module)
    )


def _repeats(module: nn.Module) -> bool:
    """Return whether two of its members are of one kind, and have layers of their own."""
    kinds = [type(member) for member in module.children() if any(True for _ in member.children())]
    return len(set(kinds)) < len(kinds)
