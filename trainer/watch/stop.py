"""Stop requests: a signal sets a flag, and all ranks agree on the step after which they stop.

with stop_requests(runtime, sign) as stop:
    while not stop.agreed(): ...
"""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

import torch
import torch.distributed as dist

from trainer.config.exits import Exit, Fault
from trainer.distributed.runtime import Runtime

log = logging.getLogger("trainer")

_SECONDS = 0.1  # between two agreements, where steps are shorter
_MOST = 8  # calls between two: where steps suddenly get longer, a stop must not come late


class Stop:
    """Whether a signal asked this run to stop, and whether all ranks are to save now.

    `calls` counts the calls of `agreed`, for the watchdog.
    """

    def __init__(self, runtime: Runtime, sign: Callable[[], None]) -> None:
        self.signal: signal.Signals | None = None
        self.save = False
        self._runtime = runtime
        self.calls = 0
        self._sign = sign
        self._flags = torch.zeros(3)
        self._pending: dist.Work | None = None
        self._began = time.monotonic()
        self._since, self._interval = 0, 1  # calls

    @property
    def name(self) -> str | None:
        """The signal that this rank received; None when another rank received it."""
        return self.signal.name if self.signal else None

    def request(self, number: int, _: FrameType | None) -> None:
        """Handle a signal. A second SIGTERM changes nothing; a second Ctrl-C ends this rank at once."""
        if self.signal is None:
            self.signal = signal.Signals(number)
            if self._runtime.is_main:
                log.info(
                    "%s: saving a checkpoint once all ranks agree on a step, then stopping",
                    self.signal.name,
                )
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def agreed(self, *, save: bool = False, is_step: bool = False) -> bool:
        """Return whether any rank had been asked to stop at the last agreement, alike on every rank.

        `save` asks all ranks for a checkpoint in the same way; the attribute `save` has the answer.
        Every rank calls it equally often. The all-reduce runs while the step computes, so the answer
        is that of the one before and no rank waits for it. Calls with `is_step` that come quickly share
        an agreement; the ranks agree on how many do.
        """
        self.calls += 1
        self._sign()
        if self._runtime.control is None:
            self.save = save
            return self.signal is not None
        asked, self.save = False, False
        self._since += 1
        if is_step and self._since < self._interval:
            return False
        if self._pending is not None:
            self._pending.wait()
            stopping, saving, interval = self._flags.tolist()
            asked, self.save, self._interval = stopping > 0, saving > 0, -int(interval)
        now = time.monotonic()
        a_call, self._began, self._since = (now - self._began) / self._since, now, 0
        is_known = is_step and self._pending is not None  # how long a step takes
        fits = int(_SECONDS / max(a_call, _SECONDS / _MOST)) if is_known else 1
        asks = save and not self.save  # not again where it was just granted
        # MAX of the negative intervals is the shortest one, that of the slowest rank.
        self._flags = torch.tensor([float(self.signal is not None), float(asks), -max(fits, 1)])
        self._pending = dist.all_reduce(
            self._flags, dist.ReduceOp.MAX, group=self._runtime.control, async_op=True
        )
        return asked

    def finish(self) -> None:
        """Wait for the last all-reduce; it must end before the process group is destroyed."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None


@contextlib.contextmanager
def stop_requests(runtime: Runtime, sign: Callable[[], None]) -> Iterator[Stop]:
    """Turn SIGTERM and SIGINT into a stop request within the block; each `agreed` calls `sign`.

    Before the block they keep their defaults: there is nothing to save, and Python runs no handler
    while the process group waits for its peers in C++. After it, a rank that has received a signal
    ignores SIGTERM, so that it can finish.
    """
    stop = Stop(runtime, sign)
    before = {
        number: signal.signal(number, stop.request) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
        stop.finish()
    except KeyboardInterrupt:
        raise Fault(Exit.CODE, "interrupted a second time, before the checkpoint") from None
    finally:
        if stop.signal is not None:
            before[signal.SIGTERM] = signal.SIG_IGN
        for number, handler in before.items():
            signal.signal(number, handler)
