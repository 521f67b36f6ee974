"""A heat map: a figure of each rank by time.

chart = draw_heat_map(history, "own_s", "Seconds of own work per step")
"""

import altair as alt

from trainer.report.history import History
from trainer.report.page.drawing import Drawn, drawn

_COLUMNS, _ROWS = 40, 25


def draw_heat_map(run: History, name: str, title: str) -> Drawn | None:
    """Return a figure of every rank by time; a cell shows the highest value of its ranks and times."""
    numbers = [int(one.get("rank", 0)) for event in run.usage for one in event["ranks"]]
    ranks = max([0, *numbers]) + 1
    rows = min(_ROWS, ranks)
    scale = 1e-9 if name == "memory" else 1.0
    cells: dict[tuple[int, int], float] = {}
    steps: dict[int, float] = {}  # of the last event in a column
    for number, event in enumerate(run.usage):
        column = number * min(_COLUMNS, len(run.usage)) // len(run.usage)
        steps[column] = event.get("step", 0)
        for one in event["ranks"]:
            if one.get(name) is not None and one.get("rank", -1) >= 0:
                row = int(one["rank"]) * rows // ranks
                cells[column, row] = max(cells.get((column, row), 0.0), one[name] * scale)
    if len({column for column, _ in cells}) < 2:
        return None  # the run took only seconds
    first = [-(-row * ranks // rows) for row in range(rows)]  # the first rank of each row
    points = [
        {"s": steps[column], "r": first[row], "v": float(f"{value:.4g}")}
        for (column, row), value in cells.items()
    ]
    chart = (
        alt.Chart(alt.InlineData(points))
        .mark_rect()
        .encode(
            x=alt.X("s:O", title="step", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
            y=alt.Y("r:O", title="rank"),
            color=alt.Color("v:Q", title=None, scale=alt.Scale(scheme="viridis")),
            tooltip=[
                alt.Tooltip("s:O", title="step"),
                alt.Tooltip("r:O", title="rank"),
                alt.Tooltip("v:Q", title=title, format=".4~g"),
            ],
        )
    )
    (_, worst), most = max(cells.items(), key=lambda cell: cell[1])
    words = f"{ranks} ranks; the highest value is {most:.4g}, of rank {first[worst]}"
    height = min(40 + 18 * ranks, 400)
    return drawn(f"ranks-{name}-{run.name}", title, words, chart=chart, height=height)
