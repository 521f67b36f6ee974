"""Where the time went: a bar per run, divided over the causes of trainer/report/goodput.py.

chart = draw_shares([history])
"""

from collections.abc import Sequence

import altair as alt

from trainer.report.goodput import CAUSES
from trainer.report.history import History
from trainer.report.page.drawing import Drawn, drawn


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
                scale=alt.Scale(domain=list(CAUSES), scheme="tableau20"),
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
