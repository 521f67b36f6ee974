"""Why this node's ranks failed: told once, the cause with its traceback.

code = tell(agent.run(), oom_kills())
"""

import signal
import sys
from dataclasses import dataclass
from typing import Self

from torch.distributed.elastic.agent.server.api import RunResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from trainer.config.exits import Exit, combine
from trainer.config.lines import of_rank
from trainer.watch.cgroup import explain_sigkill


def tell(result: RunResult, kills_before: int | None) -> Exit:
    """Tell why ranks failed, the cause with its traceback, and return the code for them all."""
    failures = {rank: _Failure.of(failure) for rank, failure in result.failures.items()}
    verdict = combine(failure.code for failure in failures.values())
    if verdict == Exit.STOPPED:
        return verdict
    causes = [rank for rank, failure in failures.items() if combine([failure.code]) == verdict]
    first = min(causes, key=lambda rank: failures[rank].timestamp, default=None)
    for rank in sorted(failures, key=lambda rank: rank != first):
        failure = failures[rank]
        trace = failure.trace.splitlines() if rank == first else []
        killed = explain_sigkill(kills_before) if failure.code == -signal.SIGKILL else ""
        told = [of_rank(rank) + line for line in trace]
        told.append(f"launch: rank {rank}: {failure.message}{killed} (exit {failure.code})")
        print("\n".join(told), file=sys.stderr, flush=True)
    return verdict


@dataclass(frozen=True)
class _Failure:
    """What a failed rank said of itself, or what its exit code says where it could not."""

    code: int
    message: str
    trace: str
    timestamp: int

    @classmethod
    def of(cls, failure: ProcessFailure) -> Self:
        said = failure.error_file_data.get("message")
        if isinstance(said, dict):  # written by trainer/__main__.py
            trace = said["extraInfo"]["py_callstack"]
            return cls(said["errorCode"], said["message"], trace, failure.timestamp)
        # SIGTERM ended it at once: it had no handler yet, so there was no step to save.
        early = failure.exitcode == -signal.SIGTERM
        code = int(Exit.STOPPED) if early else failure.exitcode
        return cls(code, str(failure.message), "", failure.timestamp)
