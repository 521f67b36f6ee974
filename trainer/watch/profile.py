"""Profiles some steps with torch.profiler: a trace of each rank, and where rank 0's time went.

TRAINER_PROFILE=100:105 python -m trainer     # steps 100 to 105; open the traces in Perfetto
kill -USR2 PID                                # the next five, of a rank or of all that a launcher has

On a GPU also each allocation, as a snapshot that https://pytorch.org/memory_viz shows.
"""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator

from torch.profiler import ProfilerActivity, profile

from trainer.config.exits import PROFILE_SIGNAL
from trainer.config.settings import Settings
from trainer.distributed.runtime import Runtime
from trainer.distributed.torch_private import record_memory, save_memory
from trainer.report.events import Report

_AT_ONCE = 5  # steps after a signal
_OPERATIONS = 10  # in the event
_COMMUNICATION = ("c10d::", "nccl", "gloo:")  # how torch and the backends name theirs

log = logging.getLogger("trainer")


class _Profile:
    """From the first of the steps to the last; a rank that resumes between them begins there.

    Of those that are set, and of the next ones after a signal; one that comes meanwhile adds none.
    """

    def __init__(
        self, settings: Settings, runtime: Runtime, report: Report, done: Callable[[], int]
    ) -> None:
        self._first, self._last = map(int, (settings.profile or "1:0").split(":"))
        self._is_asked = False
        self._folder = settings.run_folder / "profile"
        self._runtime, self._report, self._done = runtime, report, done
        self._running: profile | None = None
        self._from, self._began = 0, 0.0
        self._on_gpu = runtime.device.type == "cuda"

    def ask(self, *_: object) -> None:
        """Handle the signal: profile the next steps."""
        self._is_asked = True

    def before_step(self) -> None:
        """Begin or end, as the number of steps done has it."""
        done = self._done()
        if self._is_asked:
            self._is_asked = False
            if self._running is None:
                self._first, self._last = done + 1, done + _AT_ONCE
        if self._running is None and self._first - 1 <= done < self._last:
            activities = [ProfilerActivity.CPU]
            if self._on_gpu:
                activities.append(ProfilerActivity.CUDA)
                record_memory()
            self._running, self._from = profile(activities=activities), done + 1
            self._began = time.monotonic()
            self._running.start()
        elif self._running is not None and done >= self._last:
            self.end()

    def end(self) -> None:
        """Write what has been recorded, if anything has. A full disk costs a warning, not the run."""
        if (running := self._running) is None:
            return
        seconds, self._running = time.monotonic() - self._began, None
        running.stop()
        written: dict[str, Callable[[str], object]] = {".json": running.export_chrome_trace}
        if self._on_gpu:
            written[".memory.pickle"] = save_memory
        for suffix, write in written.items():
            name = f"rank-{self._runtime.rank}-steps-{self._from}-{self._done()}{suffix}"
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                write(str(self._folder / name))
            except (OSError, RuntimeError) as error:
                log.warning("%s: %s; it is missing there", self._folder / name, error)
        spent = [
            (one.key, (one.self_cpu_time_total + one.self_device_time_total) / 1e6, one.count)
            for one in running.key_averages()
        ]
        self._report(
            "profile",
            first=self._from,
            last=self._done(),
            seconds=seconds,
            path=str(self._folder),
            communication_s=sum(took for name, took, _ in spent if name.startswith(_COMMUNICATION)),
            operations=[
                {"name": name, "seconds": took, "calls": calls}
                for name, took, calls in sorted(spent, key=lambda one: -one[1])[:_OPERATIONS]
            ],
        )


@contextlib.contextmanager
def profiling(
    settings: Settings, runtime: Runtime, report: Report, *, done: Callable[[], int]
) -> Iterator[Callable[[], None]]:
    """Yield what is to be called before each step; `done` returns how many steps have been taken."""
    found = _Profile(settings, runtime, report, done)
    before = signal.signal(PROFILE_SIGNAL, found.ask)
    try:
        yield found.before_step
    finally:
        signal.signal(PROFILE_SIGNAL, before)
        found.end()
