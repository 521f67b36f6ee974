"""Starts the process that sends a run's figures to its tracker, and limits its time at the end.

with tracked(settings): ...

The process reads `metrics.jsonl`, so a slow tracker does not slow the training down.
"""

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.report.events import Event
from trainer.report.trackers import END

log = logging.getLogger("trainer")

_END_STOPPED = (
    5  # seconds after a stop, when little time may be left: the next attempt sends the rest
)
_MARGIN = 2  # seconds: the process ends by itself before it is killed


@contextlib.contextmanager
def tracked(settings: Settings) -> Iterator[Callable[[Event], None]]:
    """Send the events of the block. Raises Fault(64) when the tracker's package is missing.

    Whatever goes wrong later only causes a warning.
    """
    name, folder = settings.tracker, settings.run_folder
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:  # a folder ./wandb is no package
        raise Fault(
            Exit.CONFIG,
            f"TRAINER_TRACKER={name}: no package {name} is installed; pip install {name} in the "
            "job's image",
        )
    metrics = folder / "metrics.jsonl"
    first = 0
    if settings.resume == "never":  # another run, in the same folder
        (folder / f"tracker-{name}.json").unlink(missing_ok=True)
        first = metrics.stat().st_size
    arguments = [name, str(folder), str(first)]
    path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # What the libraries print is for people, and stdout is for events.
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer.report.trackers", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        stdin=subprocess.PIPE,
        stdout=2,
        start_new_session=True,  # if the rank is killed, it still sends the rest
    )
    end = END

    def take(event: Event) -> None:
        nonlocal end
        if event["event"] == "fault" and event["kind"] == "stopped":
            end = _END_STOPPED

    try:
        yield take
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # it is gone, or hangs
            process.communicate(f"{end}\n".encode(), timeout=end + _MARGIN)
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.returncode:
            log.warning(
                "TRAINER_TRACKER=%s: did not take all figures within %s s of the end; the next attempt "
                "sends the rest",
                name,
                end,
            )
