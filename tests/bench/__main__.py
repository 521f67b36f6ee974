"""Measure muster and what a user would use instead: `make bench`, or `make bench PICK=step`.

The contenders of a row take turns, so that a slower machine slows all of them. Each figure is a ratio to
a peer in the same round. The rounds of a row are divided among five passes over all rows, each with new
processes. There is no verdict if half of the rounds' ratios spread over more than 5 %, unless the goal
is farther away than that.

    python -m tests.bench step --rounds 15
"""

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import psutil

from tests.bench.measure import PEERS, Times, end_contenders_on_sigterm, ratio, typical
from tests.bench.rows import ROWS, Row
from tests.conftest import ROOT, run_command

STEADY = 0.05
# Ratios shift by 1 to 2 % with the layout of a process's memory, which lasts for its life, and with the
# machine's speed, which lasts for minutes. Rounds of one minute and one process show neither.
PASSES = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each row (15)")
    parser.add_argument("-o", "--folder", type=Path, default=ROOT / "build" / "bench")
    args = parser.parse_args()
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: wanted 1 or more")
    date = datetime.now(UTC)
    result: dict[str, Any] = {"date": date.isoformat(timespec="seconds"), **where(), "rows": {}}
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / f"{date:%Y%m%dT%H%M%S}.json"
    times: dict[str, Times] = {}
    try:
        for number in range(PASSES):
            for name in args.rows or ROWS:
                row = ROWS[name]
                rounds = len(range(number, args.rounds, PASSES))
                if rounds == 0:
                    continue
                print(f"pass {number + 1} of {PASSES}: {name}", file=sys.stderr, flush=True)
                for contender, took in row.measure(rounds).items():
                    times.setdefault(name, {}).setdefault(contender, []).extend(took)
                result["rows"][name] = _row(row, times[name], starts=number + 1)
                result["load_after"] = os.getloadavg()[0]
                path.write_text(json.dumps(result), encoding="utf-8")
    finally:  # a row that fails loses no other
        print(_heading(result))
        print("\n".join(line for each in result["rows"].items() for line in _lines(*each)))
        print(f"\n{path}")
    return 0


def _row(row: Row, times: Times, *, starts: int) -> dict[str, Any]:
    """Return a row's figures: all times as they were measured, and the ratios to each peer."""
    ours, ratios = times["muster"], {}
    for peer, theirs in times.items():
        if peer == "muster":
            continue
        cpu, cpu_spread = ratio([one.cpu for one in ours], [one.cpu for one in theirs])
        wall, wall_spread = ratio([one.wall for one in ours], [one.wall for one in theirs])
        held, peak = typical(theirs).memory, typical(theirs).peak
        ratios[peer] = {
            "cpu": cpu,
            "cpu_spread": cpu_spread,
            "wall": wall,
            "wall_spread": wall_spread,
            "memory": typical(ours).memory / held if held else None,
            "peak": typical(ours).peak / peak or None if peak else None,
            "goal": row.goals[peer],
            "verdict": verdict(cpu, cpu_spread, goal=row.goals[peer]),
        }
    return {
        "what": row.what,
        "starts": starts,
        "ratios": ratios,
        "median": {name: asdict(typical(took)) for name, took in times.items()},
        "times": {name: [asdict(one) for one in took] for name, took in times.items()},
    }


def verdict(found: float, spread: float, *, goal: float | None) -> str:
    """Return the verdict by processor time, or nothing if the rounds differ too much for one."""
    if goal is None:
        return "published"
    if spread > max(STEADY, abs(found - goal) / found):
        return "none: spread too wide"
    return "met" if found <= goal else "not met"


def _lines(name: str, row: dict[str, Any]) -> list[str]:
    return [
        f"| {name} | {peer} | {one['cpu']:.2f} ({one['cpu_spread']:.0%}) | "
        f"{one['wall']:.2f} ({one['wall_spread']:.0%}) | {_shown(one['memory'], '.2f')} | "
        f"{_shown(one['peak'], '.2f')} | "
        f"{_shown(one['goal'], 'g')} | {one['verdict']} |"
        for peer, one in row["ratios"].items()
    ]


def _shown(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)


def _heading(result: dict[str, Any]) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return (
        f"{result['date']}, {machine['cpu']}, {machine['cores']} cores, load "
        f"{machine['load']:.1f} before; {versions}\n\n"
        "| row | peer | processor time (spread) | wall time (spread) | memory | peak | goal | |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |"
    )


def where() -> dict[str, Any]:
    """Return the machine and the versions."""
    installed = {"torch": version("torch")}
    if PEERS.exists():
        packages = PEERS.parent.parent / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
        installed |= {
            found.name: found.version
            for found in distributions(path=[str(packages / "site-packages")])
            if found.name in ("accelerate", "lightning-fabric", "transformers")
        }
    commit = run_command(["git", "describe", "--always", "--dirty"])
    return {
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "memory": psutil.virtual_memory().total,
            "system": platform.platform(),
            "load": os.getloadavg()[0],
        },
        "versions": {
            "muster": commit.stdout.strip() or version("muster"),
            "python": platform.python_version(),
            **installed,
        },
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text(encoding="utf-8").splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    end_contenders_on_sigterm()
    sys.exit(main())
