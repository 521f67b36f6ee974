"""Write a run's curves as TensorBoard event files, in `tensorboard/` of the run folder.

TRAINER_TENSORBOARD=true python -m trainer && tensorboard --logdir runs
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from trainer.report.events import Event, curves

log = logging.getLogger("trainer")

_FLUSH = 10  # seconds


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[Callable[[Event], None]]:
    """Write the events that the yielded function gets to `folder`; a repeated step replaces the first.

    A full disk costs a warning and the rest of the curves, not the run.
    """
    writer: SummaryWriter | None = None
    broken = False

    def take(event: Event) -> None:
        nonlocal writer, broken
        points = curves(event)
        if not points or broken:
            return
        try:
            if writer is None:
                _wait_for_unused_second(folder)
                writer = SummaryWriter(folder, purge_step=event["step"], flush_secs=_FLUSH)
            for curve, value in points.items():
                writer.add_scalar(curve, value, event["step"], walltime=event["time"])
        except OSError as error:
            broken = True
            log.warning("%s: %s; no more curves are written", folder, error.strerror or error)

    try:
        yield take
    finally:
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.close()


def _wait_for_unused_second(folder: Path) -> None:
    """Wait, at most a second, until no event file of `folder` has the current second in its name.

    TensorBoard reads files in order of name. With the same second in two names the process number
    would decide: the repeated steps could come first and be dropped.
    """
    now = time.time()
    if any(folder.glob(f"events.out.tfevents.{int(now):010d}.*")):
        time.sleep(1 - now % 1)
