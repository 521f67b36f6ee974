"""Remove old checkpoints. Keep the newest, the first of every N steps, and the best by the metric."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

from trainer.checkpoint.manifest import MANIFEST_FILE, Damage, decode, name_of, step_of
from trainer.checkpoint.store import Store, absolute
from trainer.config.exits import Fault


@dataclass(frozen=True)
class Keep:
    """Keep the newest `last`, the best `best`, and the first of every `every` steps (0: none).

    `named`: path or URL of one that is kept, because TRAINER_RESUME names it for each start.
    """

    last: int
    every: int = 0
    best: int = 0
    named: str = ""


def remove_old(store: Store, keep: Keep, *, newest: int) -> None:
    """Remove the checkpoints that `keep` does not name. An unreadable one stays and does not count.

    Nor does one of a later step than `newest`, which was just saved: the run has skipped it as damaged.
    """
    metrics: dict[int, float | None] = {}
    for name in store.names():
        if (step_of(name) or 0) > newest:
            continue
        try:
            with store.open(name, MANIFEST_FILE) as file:
                manifest = decode(file.read(), name)
        except (Damage, Fault, OSError):  # Fault: a newer format
            continue
        metrics[manifest.progress.step] = manifest.metric
    for name in map(name_of, removable(metrics, keep)):
        if absolute(store.where(name)) != absolute(keep.named):
            store.remove(name)


def removable(metrics: Mapping[int, float | None], keep: Keep) -> list[int]:
    """Return the steps of the checkpoints to remove, given the step and metric of each checkpoint.

    The result depends on nothing else, so it is the same after a restart.
    """
    steps = sorted(metrics)
    # nan, the metric of a run that has failed, has no place in an order
    scored = sorted(
        ((m, step) for step, m in metrics.items() if m is not None and not isnan(m)), reverse=True
    )
    kept = {*steps[-keep.last :], *(step for _, step in scored[: keep.best])}
    if keep.every:
        # the first step at or after each multiple
        firsts = {step // keep.every: step for step in reversed(steps) if step >= keep.every}
        kept |= set(firsts.values())
    return [step for step in steps if step not in kept]
