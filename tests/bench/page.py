"""Write the table of trainer/PERFORMANCE.md from the newest three runs of the benchmark.

    python -m tests.bench.page

The last column is written by hand and is kept.
"""

import json
import re
from math import comb
from statistics import median
from typing import Any

from tests.bench.rows import ROWS
from tests.conftest import ROOT

PAGE = ROOT / "trainer" / "PERFORMANCE.md"
RESULTS = ROOT / "tests" / "bench" / "results"
_RUNS = 3
_ROW = re.compile(
    r"^\| `(?P<row>[\w-]+)` \| (?P<peer>[^|]+) \|.*\| (?P<reason>[^|]*) \|$", re.MULTILINE
)
_TABLE = re.compile(r"^\| row \| peer \| processor time.*?(?=\n\n)", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Replace the table by one with the new figures and the reasons that the page has."""
    text = PAGE.read_text(encoding="utf-8")
    found = table(newest(), reasons(text))
    PAGE.write_text(_TABLE.sub(lambda _: found, text), encoding="utf-8")


def newest() -> list[dict[str, Any]]:
    """Return the newest runs, in the order of their age: oldest first."""
    files = sorted(RESULTS.glob("*.json"))[-_RUNS:]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def reasons(page: str) -> dict[tuple[str, str], str]:
    """Return the page's text for each row and peer."""
    (own,) = _TABLE.findall(page)
    return {(one["row"], one["peer"]): one["reason"] for one in _ROW.finditer(own)}


def interval(runs: list[dict[str, Any]], name: str, peer: str) -> tuple[float, float]:
    """Return a confidence interval of the ratio to a peer, of at least 95 %, by the sign test.

    Its samples are medians: one for each start of all processes. Rounds of one start are no samples of
    their own: see `PASSES`. Of twelve samples, the interval is from the third smallest to the third
    largest.
    """
    medians = []
    for run in runs:
        row = run["rows"][name]
        times = row["times"]
        pairs = zip(times["muster"], times[peer], strict=True)
        left = [one["cpu"] / other["cpu"] for one, other in pairs]
        for starts in range(row["starts"], 0, -1):
            share = -(-len(left) // starts)
            medians.append(median(left[:share]))
            left = left[share:]
    medians.sort()
    count, left_out = len(medians), 0
    while sum(comb(count, below) for below in range(left_out + 2)) / 2 ** (count - 1) <= 0.05:
        left_out += 1
    return medians[left_out], medians[-1 - left_out]


def table(runs: list[dict[str, Any]], reasons: dict[tuple[str, str], str]) -> str:
    """Return the table. Runs agree if their medians differ by at most the largest spread.

    A goal is met, or not, if the interval lies on one side of it.
    """
    times = ", ".join(run["date"][11:16] for run in runs)
    figures = f"processor time: {times} | spread | agree | interval | memory"
    lines = [f"| row | peer | {figures} | goal | met | what, why |", "| --- " * 10 + "|"]
    for name in runs[-1]["rows"]:
        if not all(name in run["rows"] for run in runs):  # a new row
            continue
        lines.append(f"| **{name}** {'| ' * 9}*{ROWS[name].what}* |")
        for peer in runs[-1]["rows"][name]["ratios"]:
            ones = [run["rows"][name]["ratios"][peer] for run in runs]
            goal = ones[-1]["goal"]
            cpu = [one["cpu"] for one in ones]
            spread = max(one["cpu_spread"] for one in ones)
            agree = "yes" if max(cpu) - min(cpu) <= spread * median(cpu) else "no"
            memory = [one["memory"] for one in ones if one["memory"]]
            low, high = interval(runs, name, peer)
            met = "" if goal is None else "yes" if high <= goal else "no" if low > goal else "open"
            cells = (
                f"`{name}`",
                peer,
                ", ".join(f"{one:.2f}" for one in cpu),
                f"{spread:.0%}",
                agree,
                f"{low:.2f} to {high:.2f}",
                f"{median(memory):.2f}" if memory else "",
                "" if goal is None else f"{goal:g}",
                met,
                reasons.get((name, peer), ""),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
