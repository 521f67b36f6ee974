"""Save while training continues.

The state is copied to host memory while the next step computes. Only the update of that step waits for
the copy, because nothing before the update changes a parameter. The memory is reused for the next copy,
so a rank needs host memory for one more copy of its state. A thread then writes the copy. The thread's
collectives use a separate process group, because training uses its own at the same time.
"""

import contextlib
import threading
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

from trainer.checkpoint.manifest import name_of
from trainer.checkpoint.retention import Keep
from trainer.checkpoint.staging import Staging
from trainer.checkpoint.state import State
from trainer.checkpoint.store import Store
from trainer.checkpoint.write import Label, Refused, write
from trainer.config.exits import Exit, Fault
from trainer.distributed.runtime import Runtime

# Seconds that a save may take to finish after an error has ended the training.
_LAST_SECONDS = 10

# With one rank this is expected. The filter is set once, because all threads share the filters.
warnings.filterwarnings("ignore", message="torch.distributed is disabled")


@dataclass(frozen=True)
class Saved:
    """The result of a save; only the main rank knows `bytes`. With a `refusal` there is no checkpoint.

    `blocked_s`: how long training waited for the save. `seconds`: how long the save took.
    """

    step: int
    where: str
    blocked_s: float
    seconds: float
    bytes: int = 0
    refusal: Refused | None = None


class Saver(contextlib.AbstractContextManager["Saver"]):
    """At most one save at a time; all ranks make the same calls."""

    def __init__(self, store: Store, keep: Keep, *, runtime: Runtime, timeout: float) -> None:
        self.store = store
        self._keep, self._timeout = keep, timeout
        self._group: dist.ProcessGroup | None = None
        if runtime.control is not None:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
            self._group = cast("dist.ProcessGroup", group)
        self._staging = Staging()
        self._copied = threading.Event()
        self._copied.set()
        self._blocked = 0.0
        self._thread: threading.Thread | None = None
        self._ended: Saved | Exception | None = None

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Make every update of `optimizer` wait until the copy has ended."""
        optimizer.register_step_pre_hook(lambda *_: self.wait_for_copy())

    def begin(self, state: State, label: Label, *, since: float) -> None:
        """Start to copy and write `state`; `since` is when training began to wait (monotonic).

        First call `wait` for the previous save. No tensor of `state` may change before `wait_for_copy`
        returns; every update of a watched optimiser calls it.
        """
        self._staging.wait_for(state)
        self._copied.clear()
        self._ended = None
        self._thread = threading.Thread(
            target=self._write, args=(state, label, since), name="checkpoint", daemon=True
        )
        self._thread.start()
        self._blocked = time.monotonic() - since

    def wait_for_copy(self) -> None:
        """Return once the state may change again. Raises Fault(71) when the copy takes too long."""
        if not self._copied.is_set():
            began = time.monotonic()
            if not self._copied.wait(self._timeout):
                raise self._too_slow()
            self._blocked += time.monotonic() - began

    def _write(self, state: State, label: Label, since: float) -> None:
        step = label.progress.step
        where = self.store.where(name_of(step))
        size, refusal = 0, None
        try:
            try:
                copies = self._staging.copy(state)
            finally:
                self._copied.set()
            try:
                size = write(state, label, self.store, self._keep, group=self._group, copies=copies)
            except Refused as error:
                refusal = error
            seconds = time.monotonic() - since
            self._ended = Saved(step, where, self._blocked, seconds, size, refusal)
        except Exception as error:  # noqa: BLE001  # `ended` raises it
            self._ended = error

    def ended(self) -> Saved | None:
        """Return the result of the save, once; None if there is none or it is still being written.

        Raises the writer's error, unless it is a refusal of the storage.
        """
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        if isinstance(self._ended, Exception):
            raise self._ended
        return self._ended

    def wait(self) -> Saved | None:
        """Wait for the save to end and return the result. Raises Fault(71) when it takes too long."""
        if self._thread is not None:
            self._thread.join(self._timeout)
            if self._thread.is_alive():
                raise self._too_slow()
        return self.ended()

    def _too_slow(self) -> Fault:
        return Fault(
            Exit.MACHINE,
            f"checkpoints {self.store.where('')}: not written after {self._timeout:.0f} s; "
            "check the storage or set a larger TRAINER_CHECKPOINT_TIMEOUT",
        )

    def __exit__(self, *_: object) -> None:
        """Let a save in progress finish after a failure. Its result is not used."""
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)
