"""Lists the runs below a folder: task, mode, how each ended, result, steps, time, goodput.

python -m trainer.runs runs
python -m trainer.runs runs --state failed --task digits
"""

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.arguments import Parser, run_tool
from trainer.config.exits import Exit, Fault
from trainer.config.log import log_to_stderr
from trainer.config.printable import printable
from trainer.report.history import History, read
from trainer.report.verdict import duration, verdict

log = logging.getLogger("runs")

_STATES = ("finished", "failed", "stopped", "open")


def main() -> int:
    """Print a row for each run and return the exit code: 0, or 65 when there is none."""
    log_to_stderr()
    return run_tool("runs", _lines)


def _lines() -> Iterator[str]:
    asked = _parse()
    found = list(runs(asked.folder))
    if not found:
        raise Fault(Exit.DATA, f"{asked.folder}: no run in it or below it")
    wanted = {"task": asked.task, "mode": asked.mode, "state": asked.state}
    rows = [
        row
        for row in (row_of(run, asked.folder) for run in found)
        if all(value in (None, row[name]) for name, value in wanted.items())
    ]
    yield json.dumps(rows) if asked.json else _table(rows)


def runs(folder: Path) -> Iterator[History]:
    """Yield the runs in a folder and below it, by path; folders inside a run folder are skipped.

    Logs a warning for each that cannot be read, such as lost+found, or a run without events.
    """
    try:
        if (folder / "metrics.jsonl").is_file() or any((folder / "logs").glob("*.jsonl")):
            yield read(folder)
            return
        inner = sorted(folder.iterdir()) if folder.is_dir() else []
    except (OSError, Fault) as error:
        log.warning("left out: %s", error)
        return
    for one in inner:
        if not one.is_symlink():
            yield from runs(one)


def row_of(run: History, above: Path) -> dict[str, Any]:
    """Return what the list shows about a run; `result` is the newest value of its task's metric."""
    ended = verdict(run)
    scores = run.evaluations.get(run.metric or "")
    return {
        "run": str(run.folder.relative_to(above)) if run.folder != above else run.name,
        "task": run.launch.get("task", run.launch.get("program")),
        "mode": run.launch.get("mode"),
        "state": ended.state,
        "metric": run.metric,
        "result": scores.values[-1] if scores else None,
        "step": max((one.last_step or 0 for one in run.attempts), default=0),
        "seconds": run.account.wall,
        "goodput": run.account.goodput,
        "attempts": len(run.attempts),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    from rich.console import Console  # noqa: PLC0415  # a fifth of the rest's time
    from rich.table import Table  # noqa: PLC0415

    table = Table("run", "task", "mode", "state", "result", "step", "time", "goodput", "attempts")
    for row in rows:
        result = "" if row["result"] is None else f"{row['metric']} {row['result']:.4g}"
        texts = [row["run"], row["task"] or "", row["mode"] or "", row["state"], result]
        texts += [f"{row['step']:,}", duration(row["seconds"]), f"{row['goodput']:.1%}"]
        table.add_row(*(printable(str(text)) for text in [*texts, row["attempts"]]))
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False)
    with console.capture() as captured:  # printed by rich, a closed pipe would end with 1
        console.print(table)
    return captured.get().rstrip("\n")


def _parse() -> argparse.Namespace:
    parser = Parser(
        prog="python -m trainer.runs",
        description="Lists the runs below a folder: task, mode, how each ended, result, steps, time, "
        "and the share of the time that went into new steps.",
    )
    parser.add_argument("folder", type=Path, help="a run folder, or a folder that contains some")
    parser.add_argument("--task", help="only runs of this task")
    parser.add_argument("--mode", help="only runs in this mode")
    parser.add_argument("--state", choices=_STATES, help="only runs in this state")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
