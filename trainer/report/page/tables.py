"""The tables of a report: settings, what differs between runs, attempts, where the time went.

settings = settings_of(history)
"""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from trainer.report.goodput import CAUSES
from trainer.report.history import History
from trainer.report.verdict import cause, duration

# The fields of the launch event to show, in this order.
_FACTS = (
    "task",
    "program",
    "mode",
    "why",
    "world_size",
    "nodes",
    "mesh",
    "device",
    "backend",
    "parameters",
    "samples",
    "global_batch",
    "micro",
    "accumulation",
    "precision",
    "lr",
    "lr_why",
    "torch",
    "python",
    "host",
    "code_sha256",
    "code_commit",
    "out",
)
_NOT_COMPARED = ("out", "host", "why", "lr_why")


def facts(run: History) -> dict[str, str]:
    """Return the fields of the newest launch event, by name."""
    launch = run.launch
    return {
        name.replace("_", " "): _text(launch[name])
        for name in _FACTS
        if launch.get(name) not in (None, {}, "")
    }


def settings(run: History) -> dict[str, str]:
    """Return the variables that were set."""
    return {str(name): str(value) for name, value in run.launch.get("settings", {}).items()}


def command(run: History) -> str:
    """Return the command that repeats the run, with its variables; "" if not known."""
    if not run.launch:
        return ""
    own = str(run.launch.get("command", ""))
    ranks, nodes = run.launch.get("world_size", 1), run.launch.get("nodes", 1) or 1
    words = [f"{name}={shlex.quote(value)}" for name, value in settings(run).items()]
    words += [f"PET_NPROC_PER_NODE={max(int(ranks / nodes), 1)}"] if ranks > 1 else []
    words += [f"PET_NNODES={nodes:.0f}"] if nodes > 1 else []
    return " ".join([*words, "python -m trainer.launch", *([own] if own else [])])


def differences(runs: Sequence[History]) -> dict[str, list[str]]:
    """Return the facts and settings that differ between runs, with a value for each run."""
    values = [
        {name: text for name, text in facts(run).items() if name not in _NOT_COMPARED}
        | {name: text for name, text in settings(run).items() if name != "TRAINER_OUT"}
        for run in runs
    ]
    names = dict.fromkeys(name for one in values for name in one)
    # A fact that a variable sets is shown only once.
    known = {name.removeprefix("TRAINER_").lower() for name in names if name.startswith("TRAINER_")}
    names = {name: None for name in names if name.replace(" ", "_") not in known}
    rows = {name: [one.get(name, "-") for one in values] for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def causes(run: History) -> list[tuple[str, str, str, str]]:
    """Return the name, time, share and meaning of each cause."""
    wall = run.account.wall or 1.0
    return [
        (name, duration(seconds), f"{seconds / wall:.1%}", CAUSES[name])
        for name, seconds in run.account.by_cause().items()
    ]


def operations(run: History) -> list[tuple[str, str, str]]:
    """Return the costliest operations of a profile: name, time, calls; the collectives' share last."""
    found = run.profile.get("operations", [])
    rows = [
        (str(one.get("name")), duration(one.get("seconds", 0.0)), f"{one.get('calls', 0):,}")
        for one in found
    ]
    share = run.profile.get("communication_s", 0.0) / (run.profile.get("seconds") or 1.0)
    return [*rows, ("all collectives", f"{share:.1%} of the time", "")] if rows else []


def attempts(run: History) -> list[dict[str, str]]:
    """Return a row for each attempt: start, duration, last step, exit code, cause."""
    rows = []
    for attempt in run.attempts:
        code = attempt.exit
        began = datetime.fromtimestamp(attempt.began, UTC)
        rows.append(
            {
                "began": f"{began:%Y-%m-%d %H:%M:%S} UTC",
                "time": duration(attempt.ended - attempt.began),
                "last step": "-" if attempt.last_step is None else f"{attempt.last_step:,}",
                "exit": "none recorded" if code is None else str(code),
                "cause": cause(attempt, code=code) if code else "",
            }
        )
    return rows


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
