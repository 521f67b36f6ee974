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
    """Yield a function that writes events to `folder`; a repeated step replaces the earlier one.

    If the disk is full, a warning is logged, no more curves are written, and the run goes on.
    """
    writer: SummaryWriter | None = None
    broken = False

    def take(event: Event) -> None:
        nonlocal writer, broken
        points = curves(event)
        if broken:
            return
        try:
            if writer is not None and event.get("kind") == "rolled_back":
                writer.close()
                writer = None  # a reader drops repeated steps only at the start of a file
            if not points:
                return
            if writer is None:
                _wait_for_unused_second(folder)
                # After a resume, a due evaluation of the checkpoint's step can come first. That step
                # is not trained again: its loss stays.
                first = event["step"] + (event["event"] != "step")
                writer = SummaryWriter(folder, purge_step=first, flush_secs=_FLUSH)
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

    TensorBoard reads files in order of name. If two names have the same second, the process number
    decides, and the repeated steps could be read first and dropped.
    """
    now = time.time()
    if any(folder.glob(f"events.out.tfevents.{int(now):010d}.*")):
        time.sleep(1 - now % 1)
