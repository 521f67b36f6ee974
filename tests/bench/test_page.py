"""The interval of a ratio, and when runs agree."""

from typing import Any

import pytest

from tests.bench import page
from tests.bench.rows import ROWS

NAME = next(iter(ROWS))


def run(ratios: list[float], *, processor: str = "one", spread: float = 0.02) -> dict[str, Any]:
    """Return a run of one row: the ratio of each of its three starts, and their spread."""
    times = {"muster": [{"cpu": ratio} for ratio in ratios], "peer": [{"cpu": 1.0}] * 3}
    of_peer = {"cpu": sorted(ratios)[1], "cpu_spread": spread, "memory": 1.0, "goal": 1.0}
    row = {"times": times, "ratios": {"peer": of_peer}}
    return {"date": "2026-11-29T20:40:20", "machine": {"cpu": processor}, "rows": {NAME: row}}


@pytest.mark.parametrize(("runs", "low", "high"), [(3, 2.0, 8.0), (4, 3.0, 10.0)])
def test_the_interval_has_at_least_95_percent(runs: int, low: float, high: float) -> None:
    ratios = [float(number) for number in range(1, 3 * runs + 1)]
    all_runs = [run(ratios[first : first + 3]) for first in range(0, len(ratios), 3)]
    assert page.interval(all_runs, NAME, "peer") == (low, high)


@pytest.mark.parametrize(
    ("second", "third", "agree"), [(1.01, 1.01, "yes"), (1.01, 1.10, "each"), (1.10, 1.10, "no")]
)
def test_runs_agree_whose_medians_differ_by_no_more_than_their_spread(
    second: float, third: float, agree: str
) -> None:
    runs = [run([1.0] * 3), run([second] * 3), run([third] * 3, processor="two")]
    cells = page.table(runs, {}).splitlines()[-1].split(" | ")
    assert (cells[2], cells[4]) == (f"1.00, {second:.2f}; {third:.2f}", agree)
