"""The charts of a report, in the order in which it shows them.

for chart in draw([history]): chart.svg, chart.spec
"""

from collections.abc import Sequence

from trainer.report.history import History
from trainer.report.page.curves import draw_figures
from trainer.report.page.drawing import Drawn
from trainer.report.page.heat_map import draw_heat_map
from trainer.report.page.shares import draw_ranks, draw_shares
from trainer.report.page.time_line import draw_time_line

_MOST_TIME_LINES = 8  # with more runs there are none


def draw(runs: Sequence[History]) -> list[Drawn]:
    """Return the charts for which the runs have figures."""
    several = len(runs) > 1
    found: list[Drawn | None] = [*draw_figures(runs), draw_shares(runs)]
    if len(runs) <= _MOST_TIME_LINES:
        found += [draw_time_line(run, of_several=several) for run in runs]
    if not several:
        found += [
            draw_ranks(runs[0]),
            draw_heat_map(runs[0], "own_s", "Seconds of own work per step, by rank"),
            draw_heat_map(runs[0], "memory", "Memory, GB, by rank"),
        ]
    return [one for one in found if one is not None]
