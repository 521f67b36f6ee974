"""Report why this node's ranks failed: each once, the cause with its traceback.

code = report_failures(agent.run(), oom_kills())
"""

import logging
import signal
import sys
from dataclasses import dataclass

from torch.distributed.elastic.agent.server.api import RunResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from trainer.config.exits import Exit, combine
from trainer.config.lines import rank_prefix
from trainer.watch.cgroup import explain_sigkill

_log = logging.getLogger("launch")


@dataclass(frozen=True)
class _Failure:
    code: int
    message: str
    traceback: str
    timestamp: int


def report_failures(result: RunResult, oom_kills_before: int | None) -> Exit:
    """Write each rank's failure to stderr, the earliest cause first; return one code for all ranks."""
    failures = {rank: _read(failure) for rank, failure in result.failures.items()}
    code = combine(failure.code for failure in failures.values())
    if code == Exit.STOPPED:
        return code
    causes = [rank for rank, failure in failures.items() if combine([failure.code]) == code]
    first = min(causes, key=lambda rank: failures[rank].timestamp, default=None)
    for rank in sorted(failures, key=lambda rank: rank != first):
        failure = failures[rank]
        if rank == first:
            for line in failure.traceback.splitlines():
                print(rank_prefix(rank) + line, file=sys.stderr, flush=True)
        oom = explain_sigkill(oom_kills_before) if failure.code == -signal.SIGKILL else ""
        _log.error("rank %d: %s%s (exit %d)", rank, failure.message, oom, failure.code)
    return code


def _read(failure: ProcessFailure) -> _Failure:
    """Return what a rank has written about its failure, or what its exit code shows."""
    report = failure.error_file_data.get("message")
    if isinstance(report, dict):  # written by trainer/config/ending.py
        traceback = report["extraInfo"]["py_callstack"]
        return _Failure(report["errorCode"], report["message"], traceback, failure.timestamp)
    # Ended by SIGTERM before it had a handler for it, so with no step to save.
    early = failure.exitcode == -signal.SIGTERM
    code = int(Exit.STOPPED) if early else failure.exitcode
    return _Failure(code, str(failure.message), "", failure.timestamp)
