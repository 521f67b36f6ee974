"""Write the table of trainer/PERFORMANCE.md from the newest three runs of the benchmark.

    python -m tests.bench.page

The last column is written by hand and is kept.
"""

import json
import re
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


def table(runs: list[dict[str, Any]], reasons: dict[tuple[str, str], str]) -> str:
    """Return the table. The medians of runs agree if they differ by at most the largest spread."""
    times = ", ".join(run["date"][11:16] for run in runs)
    lines = [
        f"| row | peer | processor time: {times} | spread | agree | memory | goal | met | what, why |",
        "| --- " * 9 + "|",
    ]
    for name in runs[-1]["rows"]:
        lines.append(f"| **{name}** {'| ' * 8}*{ROWS[name].what}* |")
        for peer in runs[-1]["rows"][name]["ratios"]:
            found = [run["rows"].get(name, {"ratios": {}})["ratios"].get(peer) for run in runs]
            ones = [one for one in found if one is not None]
            cpu, goal = [one["cpu"] for one in ones], ones[-1]["goal"]
            spread = max(one["cpu_spread"] for one in ones)
            agree = max(cpu) - min(cpu) <= spread * median(cpu)
            memory = [one["memory"] for one in ones if one["memory"]]
            verdicts = {one["verdict"] for one in ones}
            met = {"met": "yes", "not met": "no", "published": ""}
            cells = (
                f"`{name}`",
                peer,
                ", ".join("-" if one is None else f"{one['cpu']:.2f}" for one in found),
                f"{spread:.0%}",
                "yes" if agree else "no",
                f"{median(memory):.2f}" if memory else "",
                "" if goal is None else f"{goal:g}",
                met.get(verdicts.pop(), "open") if len(verdicts) == 1 else "open",
                reasons.get((name, peer), ""),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
