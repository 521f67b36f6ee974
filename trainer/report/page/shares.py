"""Where the time went: a bar per run, divided over the causes of trainer/report/goodput.py.

chart = draw_shares([history])
"""

from collections.abc import Sequence

import altair as alt

from trainer.report.goodput import CAUSES
from trainer.report.history import History
from trainer.report.page.drawing import Drawn, drawn

# Those of tableau10 in Vega, and one more.
COLOURS = {
    "training": "#4c78a8",
    "repeated": "#f58518",
    "data": "#e45756",
    "stragglers": "#9ecae9",
    "checkpoint": "#72b7b2",
    "evaluation": "#54a24b",
    "rendezvous": "#eeca3b",
    "start": "#b279a2",
    "end": "#ff9da6",
    "down": "#9d755d",
    "unknown": "#bab0ac",
}


def draw_shares(runs: Sequence[History]) -> Drawn | None:
    rows = [
        {"run": run.name, "cause": cause, "seconds": round(seconds, 3), "order": order}
        for run in runs
        for order, cause in enumerate(CAUSES)
        if (seconds := run.account.by_cause().get(cause, 0.0)) > 0
    ]
    if not rows:
        return None
    chart = (
        alt.Chart(alt.InlineData(rows))
        .mark_bar()
        .encode(
            x=alt.X(
                "seconds:Q",
                stack="normalize",
                title="share of the wall time",
                axis=alt.Axis(format="%"),
            ),
            y=alt.Y("run:N", title=None, sort=None),
            color=alt.Color(
                "cause:N",
                title=None,
                sort=list(CAUSES),
                scale=alt.Scale(domain=list(COLOURS), range=[*COLOURS.values()]),
                legend=alt.Legend(orient="top", columns=5),
            ),
            order="order:Q",
            tooltip=["run:N", "cause:N", alt.Tooltip("seconds:Q", format=",.1f")],
        )
    )
    words = "; ".join(
        f"{run.name}: {run.account.goodput:.1%} of the time went into new steps" for run in runs
    )
    return drawn(
        "goodput", "Where the time went", words, chart=chart, height=min(50 + 30 * len(runs), 400)
    )
