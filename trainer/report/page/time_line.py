"""A time line: the attempts of a run, with checkpoints, evaluations and faults.

chart = draw_time_line(history, of_several=False)
"""

import math

import altair as alt

from trainer.report.history import History
from trainer.report.page.drawing import TEXT, Drawn, drawn, legend

_MARKS = 100  # that are drawn of a kind in an attempt
_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_COLOURS = {
    "checkpoint": "#4c78a8",
    "evaluation": "#54a24b",
    "resumption": "#b279a2",
    "fault": "#e45756",
}


def draw_time_line(run: History, *, of_several: bool) -> Drawn | None:
    """Return attempts as bars, with marks for what happened in them."""
    zero = run.attempts[0].began
    end = max(attempt.ended for attempt in run.attempts)
    unit, unit_name = next(one for one in _UNITS if end - zero >= one[0] or one[0] == 1)
    bars, marks, number = [], [], 0
    for number, attempt in enumerate(run.attempts, 1):
        how = "no end recorded" if attempt.exit is None else f"exit {attempt.exit}"
        bars.append(
            {
                "attempt": number,
                "from": round((attempt.began - zero) / unit, 4),
                "to": round((attempt.ended - zero) / unit, 4),
                "ending": how,
            }
        )
        of_attempt = [one for one in run.marks if attempt.began <= one.time <= attempt.ended]
        for kind in _COLOURS:
            ones = [one for one in of_attempt if one.kind == kind]
            for one in ones[:: math.ceil(len(ones) / _MARKS) or 1]:
                at = round((one.time - zero) / unit, 4)
                marks.append(
                    {"attempt": number, "at": at, "kind": kind, "step": one.step, "text": one.text}
                )
    y = alt.Y("attempt:O", title="attempt", axis=alt.Axis(grid=False))
    axis = alt.Axis(format="~g", grid=True)
    bar = (
        alt.Chart(alt.InlineData(bars))
        .mark_bar(size=18, opacity=0.3, color="#9aa5b1", stroke=TEXT)
        .encode(
            x=alt.X("from:Q", title=f"{unit_name} since the start", axis=axis),
            x2="to:Q",
            y=y,
            tooltip=["attempt:O", "from:Q", "to:Q", "ending:N"],
        )
    )
    point = (
        alt.Chart(alt.InlineData(marks))
        .mark_point(filled=True, size=70, opacity=0.9)
        .encode(
            x="at:Q",
            y=y,
            yOffset=alt.YOffset("kind:N", scale=alt.Scale(domain=list(_COLOURS))),
            color=alt.Color(
                "kind:N",
                title=None,
                scale=alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values())),
                legend=legend(_COLOURS, columns=4),
            ),
            shape=alt.Shape("kind:N", title=None, scale=alt.Scale(domain=list(_COLOURS))),
            tooltip=["kind:N", "step:Q", "text:N"],
        )
    )
    counts = {kind: sum(one.kind == kind for one in run.marks) for kind in _COLOURS}
    said = ", ".join(
        f"{count} {kind}{'s' * (count != 1)}" for kind, count in counts.items() if count
    )
    words = f"{number} attempt{'s' * (number != 1)} in {end - zero:,.0f} s; {said or 'no marks'}"
    title = f"Time line of {run.name}" if of_several else "Time line"
    layers = [bar, point] if marks else [bar]  # an empty layer is an error in the browser's console
    chart = alt.layer(*layers).resolve_scale(color="independent", shape="independent")
    height = min(60 + 34 * number, 400)
    return drawn(f"time-{run.name}", title, words, chart=chart, height=height)
