"""The pipeline's schedules: how many stages a rank holds, and the numbers of micro-batches they can run.

torch.distributed.pipelining runs them.
"""

from dataclasses import dataclass

from trainer.config.environment import Label
from trainer.config.exits import Exit, Fault

# Micro-batches for each rank of the pipeline, if none are set: then filling and draining takes at most a
# fifth of a step (Huang et al., 2019, call it negligible from this number on).
_PER_RANK = 4


@dataclass(frozen=True)
class Schedule:
    """`kind` is torch's class; a rank holds `least` stages, or, with `more`, any larger number too.

    `v`: the first rank also holds the last stage. `rounds`: the micro-batches run in groups of equal
    size, with at least one for each rank. `split`: a stage's backward pass is two, one for the gradients
    of its inputs and one for those of its weights.
    """

    kind: str
    least: int = 1
    more: bool = False
    v: bool = False
    rounds: bool = False
    split: bool = False


SCHEDULES: dict[str, Schedule] = {
    "gpipe": Schedule("ScheduleGPipe"),
    "1f1b": Schedule("Schedule1F1B"),
    "interleaved-1f1b": Schedule("ScheduleInterleaved1F1B", least=2, more=True, rounds=True),
    "interleaved-zb": Schedule(
        "ScheduleInterleavedZeroBubble", least=2, more=True, rounds=True, split=True
    ),
    "zbv": Schedule("ScheduleZBVZeroBubble", least=2, v=True, split=True),
}


def count_stages(name: str, ranks: int, stages: int | None, *, label: Label) -> int:
    """Return the number of stages of the model. Raises Fault(64) when `stages` is not possible."""
    schedule = SCHEDULES[name]
    usual = schedule.least * ranks
    if stages is None:
        return usual
    per_rank, rest = divmod(stages, ranks)
    if rest or per_rank < schedule.least or (per_rank > schedule.least and not schedule.more):
        needed = f"{schedule.least}{' or more' if schedule.more else ''} on each of {ranks} ranks"
        raise Fault(
            Exit.CONFIG,
            f"{label('stages')}={stages}: {label('pipeline_schedule')}={name} needs {needed}; "
            f"use {usual}",
        )
    return stages


def stages_of(name: str, rank: int, ranks: int, stages: int) -> list[int]:
    """Return the stages that rank `rank` of the pipeline holds, in order."""
    if SCHEDULES[name].v:
        return [rank, stages - 1 - rank]
    return list(range(rank, stages, ranks))


def holder(name: str, stage: int, ranks: int, stages: int) -> int:
    """Return the rank of the pipeline that holds a stage."""
    return next(rank for rank in range(ranks) if stage in stages_of(name, rank, ranks, stages))


def can_run(name: str, ranks: int, count: int) -> bool:
    """Return whether the schedule can run `count` micro-batches per step with work for every rank.

    gpipe can run any number.
    """
    if name == "gpipe":
        return True
    if count < ranks:
        return False
    return not SCHEDULES[name].rounds or count % (count // ranks) == 0


def default_micro_batch(name: str, ranks: int, samples: int) -> int:
    """Return the micro-batch size for the `samples` of a step when none is set.

    It is the largest size that makes four micro-batches for each rank, or as many as possible.
    """
    if ranks == 1:
        return samples
    fitting = [n for n in _divisors(samples) if can_run(name, ranks, n)]
    enough = [n for n in fitting if n >= _PER_RANK * ranks]
    return samples // (min(enough) if enough else max(fitting, default=samples))


def check_micro_batch(name: str, ranks: int, samples: int, micro: int, *, label: Label) -> None:
    """Raise Fault(64) when the schedule cannot run a step's `samples` in micro-batches of `micro`."""
    count = samples // micro
    if can_run(name, ranks, count):
        return
    would = [samples // n for n in _divisors(samples) if can_run(name, ranks, n)]
    remedy = (
        f"use {label('micro_batch')}={would[0]}"
        if would
        else f"set {label('global_batch')} so that each pipeline has at least {ranks} samples"
    )
    raise Fault(
        Exit.CONFIG,
        f"{label('micro_batch')}={micro}: makes {count} micro-batches of the {samples} samples that "
        f"each pipeline has per step; {label('pipeline_schedule')}={name} cannot run on {ranks} ranks "
        f"with this number; {remedy}",
    )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
