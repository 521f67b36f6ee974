"""What a rank will hold and send, by arithmetic: free of torch, so that the renderer answers too.

It is fed with the pieces that `trainer/plan/costs.py` knows. The dry run and real ranks check it: see
tests/parity/test_dry_run.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod

from trainer.plan.costs import Piece
from trainer.plan.sizing import Sizing
from trainer.settings import Settings

Shape = tuple[int, ...]

# Tensors of a parameter's size that an optimiser keeps.
_STATE = {"adamw": 2, "sgd": 1}


@dataclass(frozen=True)
class Need:
    """What one rank needs, in bytes.

    `activations` is what the forward pass keeps for the backward pass, `buffers` what a mode holds
    for a while: parameters made whole, buckets of gradients, the gradients of activations on their
    way. `sent` is per optimiser step, by collective.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    sent: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes at the peak of a step, as if all came together."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers


def estimate(pieces: Sequence[Piece], sizing: Sizing, settings: Settings) -> Need:
    """Return what the worst rank needs for a model of `pieces`."""
    width = 8 if settings.precision == "fp64" else 4  # bytes of a stored parameter
    shards, replicas = sizing.mesh["dp_shard"], sizing.mesh["dp_replicate"]
    shapes = [shape for piece in pieces for shape in piece.shapes]
    whole = width * _elements(shapes)
    held = width * sum(_shard(shape, shards) for shape in shapes)
    state = (
        0 if settings.optimizer == "sgd" and not settings.momentum else _STATE[settings.optimizer]
    )
    updated = width * _largest_share(shapes, replicas) if sizing.mode == "ddp-zero1" else held
    micro, steps = sizing.batches.micro, sizing.batches.accumulation
    buffers = 2 * micro * max(piece.output for piece in pieces) * width // 4
    sent = {}
    if shards > 1:
        # A gathered block and the next one; the whole model where nothing is freed, or where its
        # gradients stay whole until the last micro-batch.
        buffers += whole if steps > 1 or not settings.reshard else 2 * _largest(pieces, width)
        gathers = steps * (2 if settings.reshard else 1)  # for forward and backward, or once
        sent["all_gather"] = gathers * held * (shards - 1)
        sent["reduce_scatter"] = held * (shards - 1)
    if replicas > 1:
        if shards == 1 and steps > 1:
            buffers += whole  # DDP's buckets, beside the gradients that were accumulated
        sent["all_reduce"] = round(2 * held * (replicas - 1) / replicas)
    if sizing.mode == "ddp-zero1" and replicas > 1:
        sent["broadcast"] = whole
    return Need(
        parameters=held,
        gradients=held,
        optimizer=state * updated,
        activations=micro * sum(piece.kept for piece in pieces) * width // 4,
        buffers=buffers,
        sent=sent,
    )


def _elements(shapes: Iterable[Shape]) -> int:
    return sum(prod(shape) for shape in shapes)


def _shard(shape: Shape, shards: int) -> int:
    """Return the elements of the largest shard: fully_shard cuts the first dimension."""
    return ceil(shape[0] / shards) * prod(shape[1:]) if shape else 1


def _largest(pieces: Sequence[Piece], width: int) -> int:
    return max(width * _elements(piece.shapes) for piece in pieces)


def _largest_share(shapes: Sequence[Shape], ranks: int) -> int:
    """Return the elements of the rank with most of them, as ZeroRedundancyOptimizer deals them out.

    Largest first, each to the rank that has least.
    """
    loads = [0] * ranks
    for size in sorted(map(prod, shapes), reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)
