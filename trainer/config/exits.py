"""What a process of this kit says with its exit code: one table for trainer, templates and docs.

The table is read by the trainer (which code to end with), by the renderer (which code a controller
is told to retry) and by the README (a test compares). It imports neither torch nor kubernetes.

    python -m trainer; echo $?
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Action(StrEnum):
    """What a launcher is told to do with a pod that ended with a code."""

    NONE = "nothing, the job is done"
    FAIL = "fail the job at once"
    RETRY = "retry, counted"
    RETRY_FREE = "retry, not counted"
    RETRY_PEER = "retry, counted at most once for all nodes"
    RETRY_ELSEWHERE = "retry on another machine, counted"


class Exit(IntEnum):
    """Every exit code of the kit; the numbers 64 to 71 follow BSD's sysexits where they fit."""

    DONE = 0
    CONFIG = 64
    DATA = 65
    PEER = 69
    CODE = 70
    MACHINE = 71
    DIVERGED = 72
    STOPPED = 143


@dataclass(frozen=True)
class Meaning:
    """A row of the table: what the code says and what a launcher does about it."""

    text: str
    action: Action


MEANINGS: dict[Exit, Meaning] = {
    Exit.DONE: Meaning("done", Action.NONE),
    Exit.CONFIG: Meaning(
        "bad configuration (unknown mode, mesh does not divide the world, batch does not divide)",
        Action.FAIL,
    ),
    Exit.DATA: Meaning(
        "bad data or checkpoint (unreadable, wrong shape, all checkpoints corrupt)", Action.FAIL
    ),
    # Whoever caused it ends with a code of its own, which is counted. Counting every node too would
    # use up one retry per node for a single lost pod; a launcher that restarts all of them together
    # counts them as one, so that a rendezvous that never comes about is not tried for ever.
    Exit.PEER: Meaning("a peer or the rendezvous is unavailable", Action.RETRY_PEER),
    Exit.CODE: Meaning(
        "the training code raised, a rank was killed, or peers were lost again and again in vain",
        Action.RETRY,
    ),
    Exit.MACHINE: Meaning(
        "this machine is unfit (preflight failed, CUDA/NCCL/ECC error)", Action.RETRY_ELSEWHERE
    ),
    Exit.DIVERGED: Meaning("training diverged (non-finite loss beyond the allowance)", Action.FAIL),
    Exit.STOPPED: Meaning(
        "stopped by a signal after a complete checkpoint, or before the first step",
        Action.RETRY_FREE,
    ),
}

# Which of several ranks' codes speaks for all: a cause before its consequences. A rank whose peer is
# gone says 69, so 69 explains nothing as long as another rank says something else.
_CAUSES_FIRST = (
    Exit.CONFIG,
    Exit.DATA,
    Exit.DIVERGED,
    Exit.MACHINE,
    Exit.CODE,
    Exit.PEER,
    Exit.STOPPED,
)


class Fault(Exception):
    """An end that has a code of its own.

    Its text is the one line a person reads: what was wrong, where, the value seen, what would work.
    """

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type["Fault"], tuple[Exit, str]]:
        """Keep the code on the way from one process to another."""
        return Fault, (self.code, str(self))


def combine(codes: Iterable[int]) -> Exit:
    """Return the code that speaks for several ranks of one node.

    A code outside the table (a rank killed by a signal is negative in Python) counts as 70.
    """
    seen = {_known(code) for code in codes}
    return next((code for code in _CAUSES_FIRST if code in seen), Exit.DONE)


def _known(code: int) -> Exit:
    try:
        return Exit(code)
    except ValueError:
        return Exit.CODE


def codes_for(*actions: Action) -> list[int]:
    """Return the codes, ascending, that a launcher answers with one of `actions`."""
    return sorted(int(code) for code, meaning in MEANINGS.items() if meaning.action in actions)
