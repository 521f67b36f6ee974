"""Says why a run failed, from the files in its folder: what failed first, the cause, what to do.

python -m trainer.why runs/digits
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from trainer.arguments import Parser, run_tool
from trainer.config.exits import Exit
from trainer.config.log import log_to_stderr
from trainer.config.printable import printable
from trainer.diagnosis.diagnose import THREAD, Diagnosis, diagnose, in_words
from trainer.diagnosis.errors import errors, plain, stuck
from trainer.diagnosis.signs import NOT_OF_RANKS, Sign, cut, read_log
from trainer.regular import open_regular
from trainer.report.events import Event
from trainer.report.history import Attempt, History, read
from trainer.report.verdict import verdict

_MOST = 10  # lines
_MOST_LOGS = 64
_FROM_RANK = re.compile(r"\[rank (\d+)\] ")
# gloo's threads write this when Python shuts down; it says nothing about why a rank ended.
_ABORTED = "terminate called without an active exception"
_TAIL = 1 << 16  # bytes of a log that are read, from its end


def main() -> int:
    """Print at most ten lines and return the exit code: 0, or 65 when there is no run."""
    log_to_stderr()
    parser = Parser(
        prog="python -m trainer.why",
        description="Says why a run failed: which rank failed first, the cause, the evidence and its "
        "source, what to do, and what followed. For a job on a cluster: python -m k8s why NAME.",
    )
    parser.add_argument("run", type=Path, help="the run folder (the run's TRAINER_OUT)")
    return run_tool("why", lambda: map(printable, why(read(parser.parse_args().run))))


def why(run: History) -> list[str]:
    """Return the lines: how the run ended, the first cause, and the causes of earlier attempts."""
    ended = verdict(run)
    lines = [f"{run.name} {ended.state}: {ended.text}"]
    *earlier, last = [diagnose(signs(run, attempt)) for attempt in run.attempts]
    if ended.state == "finished":
        faults = [mark for mark in run.marks if mark.kind == "fault"]
        lines += [f"fault     step {mark.step}: {mark.text}" for mark in faults[-3:]]
    elif last is not None:
        lines += in_words(last, job=run.name, silent=_silent(run))
    elif ended.state == "open":
        lines.append(
            "cause     no end is recorded: the run goes on, or its processes or its machine were killed"
        )
        lines.append("do        start it again: it goes on from its newest checkpoint")
    lines += _before(run.attempts, earlier)
    return lines[:_MOST]


def signs(run: History, attempt: Attempt) -> Iterator[Sign]:
    """Yield what an attempt's ranks and launchers wrote about their end."""
    for rank in attempt.failures:
        host = Path(str(rank.get("host"))).name  # a name from outside: no path
        yield Sign(
            f"{rank.get('message', '')} (exit {rank.get('exit')})",
            f"logs/{host}.jsonl",
            f"rank {rank.get('rank')} on {host}",
            rank.get("time", attempt.ended),
            _detail(rank, host, run, attempt),
        )
    if attempt.reason:
        text = f"{attempt.reason} (exit {attempt.exit})"
        said = _lines_by_rank(run.folder / "logs", newest=attempt is run.attempts[-1])
        dead = [who for who, own in said.items() if any(map(THREAD.match, plain(own)))]
        who = stuck(said) or (dead[0] if len(dead) == 1 else "")
        lines = said[who] if who else [line for own in said.values() for line in own]
        yield Sign(text, "logs/", who or "launcher", attempt.ended, tuple(lines))
    # For a user's program the launcher writes the error event; it repeats the launcher's own events.
    writer = "launcher" if "program" in run.launch else "rank 0"
    is_said = writer == "launcher" and bool(attempt.failures or attempt.reason)
    error = attempt.ending
    if error.get("event") == "error" and not is_said:
        text = f"{error.get('message', '')} (exit {error.get('code')})"
        yield Sign(text, "metrics.jsonl", writer, error["time"])
    elif attempt.exit == Exit.STOPPED and not attempt.failures:
        yield Sign(
            f"stopped after step {attempt.last_step} (exit 143)", "metrics.jsonl", "", attempt.ended
        )


def _silent(run: History) -> list[str]:
    """Return the ranks of the last attempt without an error, unless they outnumber the failed ranks.

    A rank that raised an error because it lost a peer may have been ended while it exited. Then it is
    not among the failures, and only its lines show the error.
    """
    attempt, said = run.attempts[-1], _lines_by_rank(run.folder / "logs", newest=True)
    failed = {rank.get("rank") for rank in attempt.failures}
    rest = [rank for rank in range(int(attempt.launch.get("world_size", 0))) if rank not in failed]
    if len(rest) > len(failed):
        return []
    return [f"rank {one}" for one in rest if not errors(plain(said.get(f"rank {one}", ())))]


def _detail(rank: Event, host: str, run: History, attempt: Attempt) -> tuple[str, ...]:
    """Return a rank's last lines or traceback, or its lines in the log if only those have an error."""
    lines = rank.get("last_lines")
    own = tuple(map(str, lines if isinstance(lines, list) else ()))
    own = own or tuple(str(rank.get("traceback", "")).splitlines())
    own = tuple(line for line in own if _ABORTED not in line)
    if errors(plain(own)):
        return own
    # A log also has other launches of this node, and other attempts of this launch.
    began, lines = _launch_at(
        _tail(run.folder / "logs" / f"{host}.log"), rank.get("time", attempt.ended)
    )
    mine = [one for one in read_log(lines, source="") if one.who == f"rank {rank.get('rank')}"]
    earlier = [
        other
        for one in run.attempts[: run.attempts.index(attempt)]
        for other in one.failures
        if other.get("rank") == rank.get("rank") and other.get("time", one.ended) >= began
    ]
    if len(mine) > len(earlier) and (not own or errors(plain(mine[len(earlier)].detail))):
        return mine[len(earlier)].detail
    return own


def _launch_at(lines: list[str], time: float) -> tuple[float, list[str]]:
    """Return when the launch began that wrote a log's lines at a time, and these lines."""
    began, kept = 0.0, list[str]()
    for line in lines:
        if line.startswith("--- "):
            with suppress(ValueError):
                at = datetime.fromisoformat(line[4:]).timestamp()
                if at > time:
                    break
                began, kept = at, []
        kept.append(line)
    return began, kept


def _lines_by_rank(logs: Path, *, newest: bool = False) -> dict[str, list[str]]:
    """Return the last lines of all ranks by rank; "launcher" for lines without a rank.

    `newest`: only lines of the last attempt.
    """
    lines: dict[str, list[str]] = {}
    for file in sorted(logs.glob("*.log"))[:_MOST_LOGS]:
        kept = _tail(file)
        begins = [number for number, line in enumerate(kept) if line.startswith("--- ")]
        for line in kept[begins[-1] :] if newest and begins else kept:
            rank = _FROM_RANK.match(line)
            if not line.startswith(NOT_OF_RANKS):
                text = line[rank.end() :] if rank else line
                lines.setdefault(f"rank {rank[1]}" if rank else "launcher", []).append(text)
    return lines


def _tail(file: Path) -> list[str]:
    try:
        with open_regular(file) as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _TAIL))
            return [cut(line) for line in opened.read(_TAIL).decode(errors="replace").splitlines()]
    except (OSError, ValueError):  # the host's name may not be a valid file name
        return []


def _before(attempts: list[Attempt], earlier: list[Diagnosis | None]) -> list[str]:
    """Return how earlier attempts ended, one line for each cause."""
    by_cause: dict[str, list[str]] = {}
    for number, (attempt, found) in enumerate(zip(attempts, earlier, strict=False), 1):
        text = "finished" if attempt.exit == Exit.DONE else "no end recorded"
        if found is not None:
            text = ": ".join(filter(None, (found.cause.name, found.sign.who)))
        by_cause.setdefault(text, []).append(str(number))
    return [
        f"before    attempt{'s' * (len(numbers) > 1)} {', '.join(numbers[:8])}: {text}"
        for text, numbers in by_cause.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
