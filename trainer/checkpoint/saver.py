"""Save while the training goes on: a step waits only until its tensors are copied.

The copy is to host memory that is kept for the next one (pinned where there is an accelerator), so a
rank holds its state once more. A thread then writes it; its collectives run over a group of its own,
because those of the training go on meanwhile.
"""

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from trainer.checkpoint.manifest import name_of
from trainer.checkpoint.retention import Keep
from trainer.checkpoint.state import State
from trainer.checkpoint.store import Store
from trainer.checkpoint.write import Label, Refused, write
from trainer.exits import Exit, Fault
from trainer.runtime import Runtime

# What is left to a writer when its rank goes down with an error of its own.
_LAST_SECONDS = 10

# A warning that a world of one need not read; set once, since filters are shared by all threads.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


@dataclass(frozen=True)
class Saved:
    """How a save ended; `bytes` are known to the main rank. `refusal` says why there is none."""

    step: int
    where: str
    blocked_s: float
    seconds: float
    bytes: int = 0
    refusal: Refused | None = None


class Saver:
    """At most one save at a time; all ranks make the same calls."""

    def __init__(self, store: Store, keep: Keep, *, runtime: Runtime, timeout: float) -> None:
        self.store = store
        self._keep, self._runtime, self._timeout = keep, runtime, timeout
        self._group: dist.ProcessGroup | None = None
        if runtime.control is not None:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
            self._group = cast("dist.ProcessGroup", group)
        pinned = torch.accelerator.is_available()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=pinned,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=pinned,
            )
        )
        self._thread: threading.Thread | None = None
        self._ended: Saved | Exception | None = None

    def begin(self, state: State, label: Label, *, since: float) -> None:
        """Copy `state` and start to write it; `since` is when the step began to wait.

        The save before must have been waited for.
        """
        staged = cast("State", self._stager.stage(state))
        blocked = time.monotonic() - since
        self._ended = None
        self._thread = threading.Thread(
            target=self._write, args=(staged, label, since, blocked), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _write(self, state: State, label: Label, since: float, blocked: float) -> None:
        step = label.progress.step
        where = self.store.where(name_of(step))
        size, refusal = 0, None
        try:
            try:
                size = write(state, label, self.store, self._keep, group=self._group)
            except Refused as error:
                refusal = error
            seconds = time.monotonic() - since
            self._ended = Saved(step, where, blocked, seconds, size, refusal)
        except Exception as error:  # noqa: BLE001  # raised where it is waited for
            self._ended = error

    def ended(self) -> Saved | None:
        """Return how the save ended, once; None while it is being written or when there was none.

        Raises what the writer met with that was not storage's fault.
        """
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        if isinstance(self._ended, Exception):
            raise self._ended
        return self._ended

    def wait(self) -> Saved | None:
        """Wait for the save to end and return how. Raises Fault(71) when it takes too long."""
        if self._thread is not None:
            self._thread.join(self._timeout)
            if self._thread.is_alive():
                raise Fault(
                    Exit.MACHINE,
                    f"checkpoints {self.store.where('')}: not written after {self._timeout:.0f} s; "
                    "see to the storage or set a larger TRAINER_CHECKPOINT_TIMEOUT",
                )
        return self.ended()

    def leave(self) -> None:
        """Give a writer a last chance; the run has failed, so how it ends is of no interest."""
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)


@contextlib.contextmanager
def saving(store: Store, keep: Keep, *, runtime: Runtime, timeout: float) -> Iterator[Saver]:
    """Yield what saves; a save that is being written when the block fails gets a last chance."""
    saver = Saver(store, keep, runtime=runtime, timeout=timeout)
    try:
        yield saver
    finally:
        saver.leave()
