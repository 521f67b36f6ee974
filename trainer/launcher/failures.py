"""Report why this node's ranks failed: each rank once, and the traceback of the first cause.

code = report_failures(explain({5: failure}, oom_kills(), last_lines=lines_of))
"""

import json
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.config.exits import Exit, combine
from trainer.config.lines import rank_prefix
from trainer.watch.cgroup import explain_sigkill

_SHOWN = 10  # last lines of a rank, shown again after its own output

_log = logging.getLogger("launch")


@dataclass(frozen=True)
class Failure:
    """How a rank failed; `when` is in seconds of this machine's clock.

    `has_reason`: the rank wrote why it failed. Else `message` says only how it ended, and `last_lines`
    are the last lines of its stderr.
    """

    code: int
    message: str
    traceback: str
    when: float
    has_reason: bool = False
    last_lines: tuple[str, ...] = ()


def read_failure(code: int, error_file: Path, *, now: float, own_code: int) -> Failure:
    """Return what a rank has written about its failure, or what its exit code shows.

    `own_code` is the program's exit code, `code` the one it stands for in our table.

    The file has the form of torch.distributed.elastic.multiprocessing.errors.record; the trainer adds
    its exit code (trainer/config/ending.py).
    """
    own = f" with its own code {own_code}" if own_code != code else ""
    try:
        report = json.loads(error_file.read_text(encoding="utf-8"))["message"]
        trace = str(report["extraInfo"].get("py_callstack", ""))
        reported = code if own else int(report.get("errorCode", code))
        when = error_file.stat().st_mtime
        said = " ".join(str(report["message"]).split()) + ("," + own if own else "")
        return Failure(reported, said, trace, when, has_reason=True)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        if code == -signal.SIGTERM:  # it had no handler yet, so no step to save
            return Failure(int(Exit.STOPPED), "ended by SIGTERM", "", now)
        if own_code == -signal.SIGTERM:
            return Failure(code, "raised, and was ended before it had exited", "", now)
        how = f"Signal {-code} ({signal.Signals(-code).name})" if code < 0 else "ended"
        return Failure(code, how + own, "", now)


def find_cause(failures: Mapping[int, Failure]) -> tuple[Exit, int | None]:
    """Return one code for all ranks, and the first rank that failed with it, if there is one."""
    code = combine(failure.code for failure in failures.values())
    causes = [rank for rank, failure in failures.items() if combine([failure.code]) == code]
    return code, min(causes, key=lambda rank: failures[rank].when, default=None)


def explain(
    failures: Mapping[int, Failure],
    oom_kills_before: int | None,
    *,
    late: str,
    last_lines: Callable[[int], list[str]],
) -> dict[int, Failure]:
    """Return the failures with what this node knows about them.

    A rank ended by SIGKILL gets the reason: `late` if it did not end in time, else a probable one. A
    rank that wrote no reason gets the last lines of its stderr, which `last_lines` returns.
    """
    explained = {}
    for rank, failure in failures.items():
        is_killed = failure.code == -signal.SIGKILL
        reason = (late or explain_sigkill(oom_kills_before)) if is_killed else ""
        lines = () if failure.has_reason else tuple(last_lines(rank))
        explained[rank] = replace(failure, message=failure.message + reason, last_lines=lines)
    return explained


def report_failures(failures: Mapping[int, Failure]) -> Exit:
    """Write each rank's failure to stderr, the earliest cause first; return one code for all ranks."""
    code, first = find_cause(failures)
    if code == Exit.STOPPED:
        return code
    for rank in sorted(failures, key=lambda rank: rank != first):
        failure = failures[rank]
        if rank == first:
            if failure.last_lines:
                _log.error("rank %d failed first; its last lines:", rank)
            for line in failure.last_lines[-_SHOWN:] or failure.traceback.splitlines():
                print(rank_prefix(rank) + line, file=sys.stderr, flush=True)
        after = "" if rank == first else f", after rank {first} had failed"
        _log.error("rank %d: %s%s (exit %d)", rank, failure.message, after, failure.code)
    return code
