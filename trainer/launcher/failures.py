"""Report why this node's ranks failed: each once, the cause with its traceback.

code = report_failures({5: failure}, oom_kills_before=oom_kills())
"""

import json
import logging
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.config.exits import Exit, combine
from trainer.config.lines import rank_prefix
from trainer.watch.cgroup import explain_sigkill

_log = logging.getLogger("launch")


@dataclass(frozen=True)
class Failure:
    """How a rank failed; `when` is in seconds of this machine's clock."""

    code: int
    message: str
    traceback: str
    when: float


def read_failure(code: int, error_file: Path, *, now: float) -> Failure:
    """Return what a rank has written about its failure, or what its exit code shows.

    The file has the form of torch.distributed.elastic.multiprocessing.errors.record; the trainer adds
    its exit code to it (trainer/config/ending.py).
    """
    try:
        report = json.loads(error_file.read_text(encoding="utf-8"))["message"]
        more = report["extraInfo"]
        own_code = int(report.get("errorCode", code))
        when = error_file.stat().st_mtime
        return Failure(own_code, str(report["message"]), str(more.get("py_callstack", "")), when)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        if code == -signal.SIGTERM:  # it had no handler yet, so no step to save
            return Failure(int(Exit.STOPPED), "ended by SIGTERM", "", now)
        how = f"Signal {-code} ({signal.Signals(-code).name})" if code < 0 else "ended"
        return Failure(code, how, "", now)


def report_failures(failures: Mapping[int, Failure], oom_kills_before: int | None) -> Exit:
    """Write each rank's failure to stderr, the earliest cause first; return one code for all ranks."""
    code = combine(failure.code for failure in failures.values())
    if code == Exit.STOPPED:
        return code
    causes = [rank for rank, failure in failures.items() if combine([failure.code]) == code]
    first = min(causes, key=lambda rank: failures[rank].when, default=None)
    for rank in sorted(failures, key=lambda rank: rank != first):
        failure = failures[rank]
        if rank == first:
            for line in failure.traceback.splitlines():
                print(rank_prefix(rank) + line, file=sys.stderr, flush=True)
        oom = explain_sigkill(oom_kills_before) if failure.code == -signal.SIGKILL else ""
        _log.error("rank %d: %s%s (exit %d)", rank, failure.message, oom, failure.code)
    return code
