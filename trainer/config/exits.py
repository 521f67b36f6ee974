"""The exit codes of this kit: one table for the trainer, the renderer and the README.

Imports neither torch nor kubernetes.

    python -m trainer; echo $?
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum

# Each asks a process to stop cleanly, with 143.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PROFILE_SIGNAL = signal.SIGUSR2  # profiles the next steps; ignored when no step runs


class Action(str, Enum):  # noqa: UP042  # the launcher runs on Python 3.10, which has no StrEnum
    """What a launcher does after a pod has ended with a code."""

    __str__ = str.__str__

    NONE = "nothing, the job is done"
    FAIL = "fail the job at once"
    RETRY = "retry, counted"
    RETRY_FREE = "retry, not counted"
    RETRY_PEER = "retry; all nodes together count at most once"
    RETRY_ELSEWHERE = "retry, counted; the cluster chooses the machine"


class Exit(IntEnum):
    """Every exit code; 64 to 71 follow BSD's sysexits where these fit."""

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
    """A row of the table."""

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
    # The node that caused it ends with another code, which is counted. If all other nodes also counted,
    # a single lost pod would use up one retry per node. A launcher that restarts all nodes together
    # counts them once, so that a rendezvous that always fails is not retried forever.
    Exit.PEER: Meaning("a peer or the rendezvous is unavailable", Action.RETRY_PEER),
    Exit.CODE: Meaning(
        "the training code raised, a rank was killed, or peers were lost repeatedly without progress",
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

# If ranks end with different codes, the first of these is the code for all: causes before consequences.
# For example, ranks that lose a peer end with 69, which is only a consequence of the peer's own code.
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
    """An error that ends the process with `code`.

    Its text is one line: what was wrong, where, the value seen, what would work.
    """

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type["Fault"], tuple[Exit, str]]:
        """Pickle with the code."""
        return Fault, (self.code, str(self))


def combine(codes: Iterable[int]) -> Exit:
    """Return one code for several ranks of one node.

    A code that is not in the table counts as 70, such as the negative one of a killed rank.
    """
    table = set(Exit)
    seen = {code if code in table else Exit.CODE for code in codes}
    return next((code for code in _CAUSES_FIRST if code in seen), Exit.DONE)


def codes_for(*actions: Action) -> list[int]:
    """Return the codes, ascending, whose action is one of `actions`."""
    return sorted(int(code) for code, meaning in MEANINGS.items() if meaning.action in actions)
