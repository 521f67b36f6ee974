"""A model cut into stages of about equal cost, each under the names that the whole model uses.

The cost is measured: one forward pass of one micro-batch on torch's meta device, which computes
shapes only. Of each piece it counts

- the floating-point operations,
- the bytes of its parameters and of what it keeps for the backward pass;

a piece's cost is the mean of its shares of either total, so that time and memory weigh the same.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.config.exits import Exit, Fault
from trainer.distributed.tensors import copied
from trainer.distributed.torch_private import is_view
from trainer.models.chain import Piece, pieces_of, run
from trainer.models.compare import outputs, refuse_other
from trainer.models.footprint import Activations
from trainer.plan.partition import partition, shares

# Of a sample for which chain and forward pass are compared on the CPU, which takes about a second.
_MOST_FLOPS = 2e10


@dataclass(frozen=True)
class Cost:
    """Bytes, and floating-point operations, of one micro-batch's forward pass through some pieces."""

    parameters: int
    activations: int
    flops: int


@dataclass(frozen=True)
class Cut:
    """A model in stages. `borders` are the stages' inputs, on the meta device, then the output.

    `outputs` are those of the whole model for the first sample, or None: compare.py.
    """

    pieces: list[Piece]
    costs: list[Cost]
    stages: list[range]
    borders: list[Tensor]
    outputs: Tensor | None = None

    def pieces_of(self, stage: int) -> list[Piece]:
        """Return the pieces of a stage."""
        return [self.pieces[number] for number in self.stages[stage]]

    def describe(self) -> list[dict[str, Any]]:
        """Return modules and cost of each stage, and its share of the whole cost."""
        parts = _shares(self.costs)
        rows = []
        for number, stage in enumerate(self.stages):
            modules = [name for piece in self.pieces_of(number) for name in piece.modules]
            costs = [self.costs[n] for n in stage]
            rows.append(
                {
                    "modules": modules[0] if len(modules) == 1 else f"{modules[0]}..{modules[-1]}",
                    "parameter_bytes": sum(cost.parameters for cost in costs),
                    "activation_bytes": sum(cost.activations for cost in costs),
                    "flops": sum(cost.flops for cost in costs),
                    "share": round(sum(parts[n] for n in stage), 4),
                }
            )
        return rows


def cut(model: nn.Module, inputs: object, count: int) -> Cut:
    """Cut `model` into `count` contiguous stages, with the smallest possible cost of the largest one.

    `inputs` are those of a micro-batch; only shape and type matter. Raises Fault(64) when the model has
    too few pieces or no chain, what a piece takes or returns is not one tensor, or the chain gives
    other outputs than the forward pass.
    """
    if not isinstance(inputs, Tensor):
        raise Fault(
            Exit.CONFIG,
            f"model {type(model).__name__}: its inputs are a {type(inputs).__name__}, and between "
            "stages goes one tensor; use a mode without stages, such as fsdp",
        )
    pieces = pieces_of(model)
    if len(pieces) < count:
        names = ", ".join("+".join(piece.modules) for piece in pieces)
        raise Fault(
            Exit.CONFIG,
            f"model {type(model).__name__}: its {len(pieces)} pieces ({names}) cannot make {count} "
            f"stages; at most {len(pieces)} can be",
        )
    costs, between = measure(model, inputs)
    before = None
    if sum(cost.flops for cost in costs) <= _MOST_FLOPS * len(inputs):
        before = outputs(model, inputs)
        by_chain = outputs(model, inputs, partial(run, pieces))
        refuse_other(before, by_chain, f"model {type(model).__name__}: its chain()")
    stages = partition(_shares(costs), count)
    borders = [between[stage.start] for stage in stages]
    return Cut(pieces, costs, stages, [*borders, between[-1]], before)


def measure(model: nn.Module, inputs: Tensor) -> tuple[list[Cost], list[Tensor]]:
    """Return the cost of each piece, and the tensors between them, first inputs and last output too.

    The tensors, one more than there are pieces, are on the meta device. Raises Fault(64) when a piece
    cannot compute there or does not return one tensor.
    """
    skeleton = _skeleton(model)
    x = inputs.to("meta")
    costs, between = [], [x]
    for piece in pieces_of(skeleton):
        kept = Activations()
        try:
            with FlopCounterMode(display=False) as counter, kept.counted(skeleton):
                x = piece.run(x)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise _unfit(
                model, piece, f"fails on the meta device, with shapes but no values: {reason}"
            ) from error
        if not isinstance(x, Tensor):
            raise _unfit(model, piece, f"returns a {type(x).__name__}, not one tensor")
        between.append(
            x.detach().contiguous().requires_grad_(x.is_floating_point() or x.is_complex())
        )
        own = [p for name in piece.modules for p in skeleton.get_submodule(name).parameters()]
        costs.append(Cost(sum(p.nbytes for p in own), kept.peak, counter.get_total_flops()))
    return costs, between


def _unfit(model: nn.Module, piece: Piece, reason: str) -> Fault:
    return Fault(
        Exit.CONFIG,
        f"model {type(model).__name__}: cannot be cut into stages: {'+'.join(piece.modules)} {reason}; "
        "use a mode without stages, such as fsdp",
    )


def _skeleton(model: nn.Module) -> nn.Module:
    """Return a copy of the model on the meta device, without a copy of its weights."""
    groups = [one.process_group for one in model.modules() if hasattr(one, "process_group")]
    skeleton = copied(model, lambda tensor: tensor.to("meta"), keep=groups)
    for module in skeleton.modules():
        if hasattr(module, "process_group"):  # a SyncBatchNorm, which would communicate
            module.eval()
    return skeleton


def _shares(costs: Sequence[Cost]) -> list[float]:
    return shares(
        [cost.parameters + cost.activations for cost in costs], [cost.flops for cost in costs]
    )


class Stage(nn.Module):
    """Some of a model's pieces, run one after the other.

    It has the model's own modules at their places, so that parameters keep the names they have in the
    whole model. The output is contiguous, and of type `dtype` if that is given, as the next stage
    expects. `precision` returns the context in which the pieces run.
    """

    def __init__(
        self,
        model: nn.Module,
        pieces: Sequence[Piece],
        *,
        precision: Callable[[], AbstractContextManager[object]],
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._run = [piece.run for piece in pieces]
        self._precision = precision
        self._dtype = dtype
        for piece in pieces:
            for name in piece.modules:
                *parents, last = name.split(".")
                place: nn.Module = self
                for parent in parents:
                    if parent not in dict(place.named_children()):
                        setattr(place, parent, nn.ModuleDict())
                    place = place.get_submodule(parent)
                setattr(place, last, model.get_submodule(name))

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:  # gloo sends only contiguous gradients; an LSTM's is transposed
            x.register_hook(Tensor.contiguous)
        with self._precision():
            for run in self._run:
                x = run(x)
        x = x.to(self._dtype or x.dtype).contiguous()
        # A zero-bubble schedule detaches the output in place, which a view, such as an LSTM's, refuses.
        return x.clone() if is_view(x) else x


def keep_pieces(model: nn.Module, kept: Sequence[Piece], pieces: Sequence[Piece]) -> None:
    """Replace by an empty module each of the model's `pieces` that is not among those `kept`.

    The others keep their names, and their places in a list.
    """
    kept_names = {name for piece in kept for name in piece.modules}
    for name in {name for piece in pieces for name in piece.modules} - kept_names:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, nn.Identity())
