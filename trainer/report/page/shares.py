"""Where the time went: a bar per run, or per rank, divided over the causes of trainer/report/goodput.py.

chart = draw_shares([history])
chart = draw_ranks(history)
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import altair as alt

from trainer.report.goodput import PHASES
from trainer.report.history import History
from trainer.report.page.drawing import CONTAINER, LABELS, Drawn, drawn, legend

# The colours of tableau10 in Vega, and one more.
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
_OF_PHASES = {
    "import": COLOURS["repeated"],
    "join": COLOURS["unknown"],
    "start": COLOURS["start"],
    "preflight": COLOURS["rendezvous"],
    "data": COLOURS["data"],
    "compute": COLOURS["training"],
    "communication": COLOURS["stragglers"],
    "device": COLOURS["down"],
    "checkpoint": COLOURS["checkpoint"],
    "evaluation": COLOURS["evaluation"],
}
_MOST_RANKS = 16


def draw_shares(runs: Sequence[History]) -> Drawn | None:
    words = "; ".join(
        f"{run.name}: {run.account.goodput:.1%} of the time went into new steps" for run in runs
    )
    bars = {run.name: run.account.by_cause() for run in runs}
    return _draw("goodput", "Where the time went", words, bars=bars, colours=COLOURS)


def draw_ranks(run: History) -> Drawn | None:
    """Return a bar for each rank; if there are many, for those that waited least for the others."""
    ranks: dict[int, Counter[str]] = {}
    for event in run.usage:
        for one in event["ranks"]:
            spent = ranks.setdefault(int(one.get("rank", 0)), Counter())
            spent.update({phase: max(one.get(f"{phase}_s", 0.0), 0.0) for phase in PHASES})
    ranks = {rank: spent for rank, spent in ranks.items() if spent.total()}
    if len(ranks) < 2:
        return None
    slowest = sorted(ranks, key=lambda rank: ranks[rank]["communication"] / ranks[rank].total())
    first, last = slowest[0], slowest[-1]
    shares = [ranks[rank]["communication"] / ranks[rank].total() for rank in (first, last)]
    words = (
        f"rank {first} spent the smallest share of its time in collectives, {shares[0]:.0%}; "
        f"rank {last} the largest, {shares[1]:.0%}"
    )
    shown = sorted(slowest[:_MOST_RANKS])
    return _draw(
        f"phases-{run.name}",
        "Where each rank's time went",
        words,
        bars={f"rank {rank}": ranks[rank] for rank in shown},
        colours=_OF_PHASES,
    )


def _draw(
    name: str,
    title: str,
    words: str,
    *,
    bars: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
) -> Drawn | None:
    """Draw a bar for each of `bars`: its seconds by cause, in the order of `colours`."""
    rows = [
        {"run": of, "cause": cause, "seconds": round(seconds, 3), "order": order}
        for of, spent in bars.items()
        for order, cause in enumerate(colours)
        if (seconds := spent.get(cause, 0.0)) > 0
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
                title="share of the time",
                axis=alt.Axis(format="%"),
            ),
            y=alt.Y(
                "run:N",
                title=None,
                sort=None,
                axis=alt.Axis(labelLimit=alt.ExprRef(f"{CONTAINER} * {LABELS}")),
            ),
            color=alt.Color(
                "cause:N",
                title=None,
                sort=list(colours),
                scale=alt.Scale(domain=list(colours), range=[*colours.values()]),
                legend=legend(colours, columns=5, left=15 + 5.5 * max(map(len, bars))),
            ),
            order="order:Q",
            tooltip=["run:N", "cause:N", alt.Tooltip("seconds:Q", format=",.1f")],
        )
    )
    return drawn(name, title, words, chart=chart, height=min(50 + 30 * len(bars), 400))
