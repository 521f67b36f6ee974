"""The global batch divided over ranks and into micro-batches."""

from dataclasses import dataclass
from math import ceil

from trainer.config.environment import Label
from trainer.config.exits import Exit, Fault

_TRIED = 100_000  # sizes of micro-batches that are tried; a job file may have any number


@dataclass(frozen=True)
class Batches:
    """Samples: `global_batch` = `micro` x `accumulation` x `replicas`.

    If the shares are uneven, the product is larger: missing samples are padded with weight 0.
    """

    global_batch: int
    micro: int
    accumulation: int
    replicas: int


def divide_batch(
    global_batch: int, micro_batch: int | None, replicas: int, *, label: Label
) -> Batches:
    """Split the global batch over `replicas` and into micro-batches. Raises Fault(64) on a remainder."""
    if global_batch % replicas:
        below = global_batch // replicas * replicas
        near = " or ".join(str(n) for n in (below, below + replicas) if n)
        raise Fault(
            Exit.CONFIG,
            f"{label('global_batch')}={global_batch}: does not divide over {replicas} "
            f"data-parallel ranks; use {near}",
        )
    per_replica = global_batch // replicas
    micro = micro_batch or per_replica
    if per_replica % micro:
        smaller = range(min(micro - 1, per_replica), 1, -1)[:_TRIED]
        fitting = next((n for n in smaller if per_replica % n == 0), 1)
        raise Fault(
            Exit.CONFIG,
            f"{label('micro_batch')}={micro}: does not divide the {per_replica} samples that each of "
            f"{replicas} data-parallel ranks has per step; use {fitting}",
        )
    return Batches(global_batch, micro, per_replica // micro, replicas)


def spread_batch(global_batch: int, micro_batch: int | None, replicas: int) -> Batches:
    """Split the global batch into shares of the same shape; the last ones may not be full."""
    share = ceil(global_batch / replicas)
    micro = min(micro_batch or share, share)
    return Batches(global_batch, micro, ceil(share / micro), replicas)
