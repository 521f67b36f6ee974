"""A chain: the forward pass of a model as an ordered list of pieces, so that it can be cut into stages.

Your model has it as a method, and its forward pass runs the same chain:

    def chain(self):
        return [
            (("embedding",), self.embedding),
            (("hidden", "norm"), lambda x: self.norm(self.hidden(x).relu())),
            (("head",), self.head),
        ]

    def forward(self, x):
        return trainer.models.chain.run(self.chain(), x)

A plain nn.Sequential and torchvision's ResNets need no method.
"""

import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from trainer.config.exits import Exit, Fault


class Piece(NamedTuple):
    """A step of the forward pass: the names of the submodules that it uses, and the step itself."""

    modules: tuple[str, ...]
    run: Callable[[Tensor], Tensor]


# A model may write its pieces as plain tuples.
Chain = Sequence[tuple[tuple[str, ...], Callable[[Tensor], Tensor]]]


def run(chain: Chain, x: Tensor) -> Tensor:
    """Return the chain's output for the input `x`."""
    for _, piece in chain:
        x = piece(x)
    return x


def pieces_of(model: nn.Module) -> list[Piece]:
    """Return the model's chain; every piece has parameters.

    Raises Fault(64) when the model has no chain, a wrong one, or one without every parameter exactly
    once.
    """
    pieces = _read(model)
    _check(model, pieces)
    joined: list[Piece] = []
    for piece in pieces:  # one without parameters goes to a neighbour: a stage needs some to train
        if joined and not (_trains(model, joined[-1]) and _trains(model, piece)):
            both = joined[-1], piece
            joined[-1] = Piece(joined[-1].modules + piece.modules, partial(run, both))
        else:
            joined.append(piece)
    return joined


def _read(model: nn.Module) -> list[Piece]:
    """Return the chain as the model gives it. Raises Fault(64) for a wrong one."""
    try:
        chain: list[Any] = list(_chain_of(model))
    except Fault:
        raise
    except Exception as error:
        raise _wrong(model, f"raised {type(error).__name__}: {error}") from error
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    for piece in chain:
        names, step = piece if isinstance(piece, tuple) and len(piece) == 2 else (None, None)
        if not (isinstance(names, tuple) and callable(step)):
            wanted = "tuples of names of submodules, itself a tuple, and a callable"
            raise _wrong(model, f"must have {wanted}, not {reprlib.repr(piece)}")
        if unknown := [name for name in names if name not in known]:
            raise _wrong(model, f"has {unknown[0]!r}, which is no submodule of the model")
    return [Piece(*piece) for piece in chain]


def _chain_of(model: nn.Module) -> Chain:
    method = getattr(model, "chain", None)
    if callable(method) and not isinstance(method, nn.Module):
        chain: Chain = method()
        return chain
    if type(model) is nn.Sequential:
        # named_children() has a module that is used twice only once.
        every = model.named_modules(remove_duplicate=False)
        return [((name,), child) for name, child in every if name and "." not in name]
    # Not imported here: if the model is a ResNet, torchvision is loaded.
    resnet = sys.modules.get("torchvision.models.resnet")
    if resnet and type(model) is resnet.ResNet:
        return _resnet(model)
    raise Fault(
        Exit.CONFIG,
        f"model {type(model).__name__} cannot be cut into stages: it has no method chain(), which "
        "returns its forward pass as (submodule names, callable); see trainer/models/chain.py",
    )


def _resnet(model: nn.Module) -> Chain:
    """Return a torchvision ResNet as its stem, every residual block, and the head."""
    stem = nn.Sequential(*map(model.get_submodule, ("conv1", "bn1", "relu", "maxpool")))
    blocks = [
        ((f"layer{layer}.{name}",), block)
        for layer in range(1, 5)
        for name, block in model.get_submodule(f"layer{layer}").named_children()
    ]
    pool, last = model.get_submodule("avgpool"), model.get_submodule("fc")
    head = nn.Sequential(pool, nn.Flatten(1), last)
    return [(("conv1", "bn1", "relu", "maxpool"), stem), *blocks, (("avgpool", "fc"), head)]


def _check(model: nn.Module, pieces: Sequence[Piece]) -> None:
    """Raise Fault(64) unless every parameter and buffer is in exactly one piece."""
    counts: Counter[int] = Counter()
    for piece in pieces:
        modules = [model.get_submodule(name) for name in piece.modules]
        counts.update({id(t) for m in modules for t in (*m.parameters(), *m.buffers())})
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if (count := counts[id(tensor)]) != 1:
            raise Fault(
                Exit.CONFIG,
                f"model {type(model).__name__}: {count} of its pieces have {name}; each tensor must be "
                "in exactly one",
            )


def _wrong(model: nn.Module, problem: str) -> Fault:
    return Fault(Exit.CONFIG, f"model {type(model).__name__}: its chain() {problem}")


def _trains(model: nn.Module, piece: Piece) -> bool:
    return any(True for name in piece.modules for _ in model.get_submodule(name).parameters())
