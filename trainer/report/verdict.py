"""How a run ended, in one sentence.

verdict(history)    # Verdict("finished", "accuracy 0.9694 after 450 steps in 11 s")
"""

from dataclasses import dataclass
from datetime import timedelta

from trainer.config.exits import MEANINGS, Exit
from trainer.report.history import Attempt, History


@dataclass(frozen=True)
class Verdict:
    """`state`: finished, failed, stopped, or open if no end is recorded."""

    state: str
    text: str


def verdict(run: History) -> Verdict:
    """Return how the run's last attempt ended."""
    last, wall = run.attempts[-1], duration(run.account.wall)
    done = "no step" if last.last_step is None else f"step {last.last_step:,}"
    done += f" of {run.steps:,}" if run.steps and last.last_step is not None else ""
    ending = last.ending
    if ending.get("event") == "summary" and "steps" in ending and last.exit in (None, Exit.DONE):
        score = ending.get(run.metric or "")
        result = f"{run.metric} {score:.4g}, " if isinstance(score, float | int) else ""
        return Verdict("finished", f"{result}{ending['steps']:,} steps in {wall}{_more(run)}")
    if last.exit == Exit.STOPPED:
        return Verdict("stopped", f"stopped by a signal at {done}; start it again to continue")
    if last.exit == Exit.DONE:
        return Verdict("finished", f"exit 0, {done} in {wall}{_more(run)}")
    if last.exit is None and ending.get("event") != "error":
        return Verdict(
            "open", f"no end is recorded: it still runs, or was killed; {done} in {wall}"
        )
    code = last.exit if last.exit is not None else int(ending.get("code", Exit.CODE))
    return Verdict("failed", f"exit {code} at {done}: {cause(last, code=code)}")


def cause(attempt: Attempt, *, code: int) -> str:
    """Return why an attempt ended.

    This is the message of its first failed rank, else its error event's, the launcher's reason or the
    meaning of the exit code.
    """
    if attempt.failures and code != Exit.STOPPED:
        first = attempt.failures[0]
        return f"rank {first.get('rank', '?')}: {first.get('message', '')}"
    if attempt.ending.get("event") == "error":
        return str(attempt.ending.get("message", ""))
    meaning = MEANINGS[Exit(code)].text if code in set(Exit) else "the program's own exit code"
    return attempt.reason or meaning


def duration(seconds: float) -> str:
    """Return seconds as people read them: 11 s, 3:20 min, 2:15:00 h."""
    if not 100 <= seconds < 1e12:  # a file from elsewhere may hold any number
        return f"{seconds:.3g} s"
    text = str(timedelta(seconds=round(seconds)))
    return f"{text} h" if seconds >= 3600 else f"{text.removeprefix('0:').removeprefix('0')} min"


def _more(run: History) -> str:
    attempts = len(run.attempts)
    faults = sum(mark.kind == "fault" for mark in run.marks)
    parts = [f"{attempts} attempts"] if attempts > 1 else []
    parts += [f"{faults} fault{'s' * (faults > 1)}"] if faults else []
    return f" ({', '.join(parts)})" if parts else ""
