"""Stop requests: a signal sets a flag, and all ranks agree on the step after which they stop.

with stop_requests(runtime) as stop:
    while not stop.agreed(): ...
"""

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import torch
import torch.distributed as dist

from trainer.config.exits import Exit, Fault
from trainer.distributed.runtime import Runtime

log = logging.getLogger("trainer")


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
        self._flags = torch.zeros(2)
        self._pending: dist.Work | None = None

    @property
    def name(self) -> str | None:
        """The signal that this rank received; None when another rank received it."""
        return self.signal.name if self.signal else None

    def request(self, number: int, _: FrameType | None) -> None:
        """Handle a signal. A second SIGTERM changes nothing; a second Ctrl-C ends this rank at once."""
        if self.signal is None:
            self.signal = signal.Signals(number)
            if self._runtime.is_main:
                log.info("%s: saving a checkpoint after this step, then stopping", self.signal.name)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def agreed(self, *, save: bool = False) -> bool:
        """Return whether any rank had been asked to stop at the last call, the same on every rank.

        `save` asks all ranks for a checkpoint in the same way; the attribute `save` has the answer.
        It is a collective: every rank calls it equally often. The all-reduce runs while the step
        computes, so the answer is that of the call before and no rank waits for it.
        """
        self.calls += 1
        self._sign()
        if self._runtime.control is None:
            self.save = save
            return self.signal is not None
        asked, self.save = False, False
        if self._pending is not None:
            self._pending.wait()
            asked, self.save = map(bool, self._flags.tolist())
        self._flags[0] = self.signal is not None
        self._flags[1] = save and not self.save  # just granted: do not ask again
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
def stop_requests(runtime: Runtime, sign: Callable[[], None] = lambda: None) -> Iterator[Stop]:
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
