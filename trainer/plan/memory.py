"""What a rank will hold and send, by arithmetic: free of torch, so that the renderer answers too.

It is fed with the pieces that `trainer/plan/costs.py` knows. The dry run and real ranks check it: see
tests/parity/test_dry_run.py. Activations count as float32, with half precision they are less.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, prod

from trainer.config.settings import Settings
from trainer.plan import schedules
from trainer.plan.costs import Piece, Split, split_name
from trainer.plan.in_flight import events
from trainer.plan.partition import partition, shares
from trainer.plan.sizing import Sizing

Shape = tuple[int, ...]

# Tensors of a parameter's size that an optimiser keeps.
_STATE = {"adamw": 2, "sgd": 1}


@dataclass(frozen=True)
class Need:
    """What one rank needs, in bytes.

    `average` is the moving average of the weights, `activations` what the forward pass keeps for the
    backward pass, `buffers` what a mode holds for a while: parameters made whole, buckets of gradients,
    micro-batches and the gradients of activations on their way. `sent` is per optimiser step, by
    collective.
    """

    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    buffers: int
    sent: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes at the peak of a step, as if all came together."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.average
            + self.activations
            + self.buffers
        )


@dataclass(frozen=True)
class _Stage:
    """Pieces that follow each other on a rank, and what comes in and goes out there.

    `received` and `passed` are bytes of a sample in float32, 0 where the neighbour is on the same rank.
    """

    pieces: Sequence[Piece]
    received: int = 0
    passed: int = 0


def estimate(
    pieces: Sequence[Piece], sizing: Sizing, settings: Settings, *, threads: int = 1
) -> Need:
    """Return what the worst rank needs for a model of `pieces`.

    A mode with several devices in one process needs it as if there was one. `threads` is how many
    processes hogwild starts where the settings do not say.
    """
    if sizing.mode == "hogwild":
        processes = settings.processes or threads
        return _in_each(needs(pieces, sizing, settings)[0], processes)
    return max(needs(pieces, sizing, settings), key=lambda need: need.total)


def needs(pieces: Sequence[Piece], sizing: Sizing, settings: Settings) -> list[Need]:
    """Return what a rank needs at each place in the pipeline; without one there is one place."""
    ranks, count = sizing.mesh["pp"], sizing.batches.accumulation
    if ranks == 1:
        # mp keeps this many micro-batches under way, to keep every device at work
        together = min(count, 2 * (sizing.stages or 2)) if sizing.mode == "mp" else 1
        return [_need([_Stage(pieces)], [(0, 1)] * together, sizing, settings)]
    schedule, stages = settings.pipeline_schedule, _cut(pieces, sizing)
    found = []
    for rank in range(ranks):
        held = schedules.stages_of(schedule, rank, ranks, len(stages))
        flow = events(schedule, rank, ranks, stages=len(stages), count=count)
        parts = [_part(stages, number, held) for number in held]
        order = [(held.index(stage), sign) for stage, sign in flow]
        found.append(_need(parts, order, sizing, settings))
    return found


def _cut(pieces: Sequence[Piece], sizing: Sizing) -> list[Sequence[Piece]]:
    """Return the stages, cut as `trainer/models/stages.py` does; the loss belongs to the last."""
    *trained, loss = pieces
    micro = sizing.batches.micro
    sizes = [4 * _elements(piece.shapes) + micro * piece.weighed for piece in trained]
    cost = shares(sizes, [micro * piece.flops for piece in trained])
    cuts = partition(cost, sizing.stages or 1)
    stages = [trained[cut.start : cut.stop] for cut in cuts]
    return [*stages[:-1], [*stages[-1], loss]]


def _part(stages: Sequence[Sequence[Piece]], number: int, held: Sequence[int]) -> _Stage:
    before = number > 0 and number - 1 not in held
    after = number + 1 < len(stages) and number + 1 not in held
    return _Stage(
        stages[number],
        received=stages[number - 1][-1].output if before else 0,
        passed=stages[number][-1].output if after else 0,
    )


def _need(
    stages: Sequence[_Stage],
    order: Sequence[tuple[int, int]],
    sizing: Sizing,
    settings: Settings,
) -> Need:
    """Return what a rank with `stages` needs, whose micro-batches come and go in this `order`."""
    width = 8 if settings.precision == "fp64" else 4  # bytes of a stored parameter
    mesh, micro, steps = sizing.mesh, sizing.batches.micro, sizing.batches.accumulation
    pieces = [piece for stage in stages for piece in stage.pieces]
    shapes = [shape for piece in pieces for shape in _split(piece, mesh["tp"])]
    whole = width * _elements(shapes)
    held = width * sum(_shard(shape, mesh["dp_shard"]) for shape in shapes)
    state = (
        0 if settings.optimizer == "sgd" and not settings.momentum else _STATE[settings.optimizer]
    )
    zero1 = sizing.mode == "ddp-zero1"
    updated = width * _largest_share(shapes, mesh["dp_replicate"]) if zero1 else held
    samples = micro * width / 4  # of a micro-batch; the pieces' bytes are those of float32
    buffers = _buffers(stages, order, sizing, settings) * samples
    buffers += _weights_in_passing(pieces, whole, width, sizing, settings)
    return Need(
        parameters=held,
        gradients=held,
        optimizer=state * updated,
        average=held if settings.ema_decay else 0,
        activations=round(samples * _kept_at_most(stages, order, mesh["tp"], settings)),
        buffers=round(buffers),
        sent=_sent(stages, sizing, settings, whole=whole, held=held, samples=samples * steps),
    )


def _kept_at_most(
    stages: Sequence[_Stage], order: Sequence[tuple[int, int]], tp: int, settings: Settings
) -> float:
    """Return the most bytes that the samples of micro-batches under way keep, one of each."""
    kept = [_kept(stage, tp, settings) for stage in stages]
    return max(accumulate(sign * kept[number] for number, sign in order))


def _kept(stage: _Stage, tp: int, settings: Settings) -> float:
    if settings.activation_checkpointing:
        whole = sum(piece.recomputed for piece in stage.pieces)
        return whole / tp if settings.sequence_parallel else whole
    if tp > 1:
        splits = [_of(piece, settings) for piece in stage.pieces]
        return sum(split.whole + split.shared / tp for split in splits)
    first, *others = stage.pieces
    return (first.alone if stage.received else first.kept) + sum(piece.kept for piece in others)


def _buffers(
    stages: Sequence[_Stage],
    order: Sequence[tuple[int, int]],
    sizing: Sizing,
    settings: Settings,
) -> float:
    """Return the bytes of one sample that a rank holds beside what its backward pass needs."""
    tp, steps = sizing.mesh["tp"], sizing.batches.accumulation
    pieces = [piece for stage in stages for piece in stage.pieces]
    # with its gradient; under tp also what is gathered whole, and what is not summed yet
    size = (4.0 if tp > 1 else 2.0) * max(piece.output for piece in pieces)
    if settings.activation_checkpointing:
        size += max(piece.kept for piece in pieces)  # of the block that computes anew
    for number, stage in enumerate(stages):
        # A pipeline has a place for every micro-batch that is to come in, and for every gradient, and
        # what it hands on it keeps until the gradient is there.
        under_way = max(accumulate(sign for n, sign in order if n == number))
        border = steps * (stage.received + stage.passed) + under_way * stage.passed
        size += border / tp if settings.sequence_parallel else border
    return size


def _weights_in_passing(
    pieces: Sequence[Piece], whole: int, width: int, sizing: Sizing, settings: Settings
) -> int:
    """Return the bytes of whole weights, or of their gradients, that a rank holds for a while."""
    mesh, several = sizing.mesh, sizing.batches.accumulation > 1
    size = 0
    if mesh["dp_shard"] > 1:
        # A gathered block and the next one; the whole model where nothing is freed, or where its
        # gradients stay whole until the last micro-batch.
        largest = max(width * _elements(_split(piece, mesh["tp"])) for piece in pieces)
        size += whole if several or not settings.reshard else 2 * largest
        if mesh["pp"] > 1:
            size += whole  # both: gathered once a step
    elif mesh["dp_replicate"] > 1 and several and sizing.mode in ("ddp", "ddp-zero1"):
        size += whole  # DDP's buckets, beside the gradients that were accumulated
    if sizing.mode == "localsgd" and settings.outer_lr:
        size += 2 * whole  # where a period began, and the outer momentum
    return size


def _sent(
    stages: Sequence[_Stage],
    sizing: Sizing,
    settings: Settings,
    *,
    whole: int,
    held: int,
    samples: float,
) -> dict[str, int]:
    """Return what leaves the rank in a step of so many samples; what is summed of norms is left out."""
    mesh, sent = sizing.mesh, Counter[str]()
    shards, replicas, tp = mesh["dp_shard"], mesh["dp_replicate"], mesh["tp"]
    if tp > 1:
        for piece in (piece for stage in stages for piece in stage.pieces):
            for name, size in _of(piece, settings).sent.items():
                sent[name] += round(samples * size * (tp - 1) / tp)
    if shards > 1:
        gathers = sizing.batches.accumulation * (2 if settings.reshard else 1)  # also for backward
        sent["all_gather"] += (gathers if mesh["pp"] == 1 else 1) * held * (shards - 1)
        sent["reduce_scatter"] += held * (shards - 1)
    if replicas > 1:
        averaged = held
        if sizing.mode == "localsgd":
            state = _STATE[settings.optimizer] if settings.local_state == "average" else 0
            averaged = (1 + state) * whole // settings.local_steps
        sent["all_reduce"] += round(2 * averaged * (replicas - 1) / replicas)
    if sizing.mode == "ddp-zero1" and replicas > 1:
        sent["broadcast"] += whole
    borders = sum(stage.received + stage.passed for stage in stages)
    sent["send"] += round(samples * (borders / tp if settings.sequence_parallel else borders))
    return {name: size for name, size in sent.items() if size}


def _in_each(need: Need, processes: int) -> Need:
    """Return what so many processes need that share the parameters and nothing else."""
    return replace(
        need,
        gradients=processes * need.gradients,
        optimizer=processes * need.optimizer,
        activations=processes * need.activations,
        buffers=processes * need.buffers,
    )


def _of(piece: Piece, settings: Settings) -> Split:
    name = split_name(
        sequence_parallel=settings.sequence_parallel, loss_parallel=settings.loss_parallel
    )
    return piece.splits[name]


def _split(piece: Piece, tp: int) -> list[Shape]:
    """Return the shapes of what one of `tp` ranks has of a piece's parameters."""
    if tp == 1:
        return piece.shapes
    cut = zip(piece.shapes, piece.split, strict=True)
    return [
        tuple(ceil(size / tp) if n == along else size for n, size in enumerate(shape))
        for shape, along in cut
    ]


def _elements(shapes: Iterable[Shape]) -> int:
    return sum(prod(shape) for shape in shapes)


def _shard(shape: Shape, shards: int) -> int:
    """Return the elements of the largest shard: fully_shard cuts the first dimension."""
    return ceil(shape[0] / shards) * prod(shape[1:]) if shape else 1


def _largest_share(shapes: Sequence[Shape], ranks: int) -> int:
    """Return the elements of the rank with most of them, as ZeroRedundancyOptimizer deals them out.

    Largest first, each to the rank that has least.
    """
    loads = [0] * ranks
    for size in sorted(map(prod, shapes), reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)
