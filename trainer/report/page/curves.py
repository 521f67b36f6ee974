"""Curves by step: loss, metric, learning rate and others, of several runs over one another.

figures = draw_figures([history])
"""

from collections.abc import Sequence
from typing import Any

import altair as alt

from trainer.report.history import Curve, History
from trainer.report.page.drawing import Drawn, drawn, legend
from trainer.report.page.thin import thin

_POINTS = 600  # at most, of a chart with all its curves
_ALL_POINTS = 3000  # of all charts: a point takes 65 bytes, and a report at most 1.5 MB
_FEW = 120  # a chart with at most so many points draws each as a dot

# Name in the events, title, format of its values.
_FIGURES = (
    ("loss", "Loss", ".4~g"),
    ("grad_norm", "Gradient norm", ".4~g"),
    ("lr", "Learning rate", ".4~g"),
    ("samples_per_s", "Samples per second", ",.4~g"),
    ("tokens_per_s", "Tokens per second", ",.4~g"),
    ("flops_per_s", "Floating-point operations per second, 10^12", ",.4~g"),
    ("peak_share", "Share of the devices' peak", ".1~%"),
    ("memory", "Memory of rank 0, GB", ".3~f"),
)


def draw_figures(runs: Sequence[History]) -> list[Drawn]:
    """Return a chart for each figure of training and evaluation that a run has."""
    several = len(runs) > 1
    names = dict.fromkeys(name for run in runs for name in run.evaluations)
    shown = [name for name in names if several or name != "loss"]
    figures = [one for one in _FIGURES if any(one[0] in run.curves for run in runs)]
    points = min(_POINTS, _ALL_POINTS // max(len(shown) + len(figures), 1))
    found = [_evaluation(runs, name, points=points) for name in shown]
    found += [_figure(runs, *one, points=points) for one in figures]
    return [one for one in found if one is not None]


def _figure(
    runs: Sequence[History], name: str, title: str, form: str, *, points: int
) -> Drawn | None:
    scale = {"memory": 1e-9, "flops_per_s": 1e-12}.get(name, 1.0)
    curves = {run.name: run.curves[name] for run in runs if name in run.curves}
    if name == "loss" and len(runs) == 1 and curves and (test := runs[0].evaluations.get(name)):
        curves = {"training": runs[0].curves[name], "test": test}
    return _lines(name, title, form, curves=curves, points=points, scale=scale)


def _evaluation(runs: Sequence[History], name: str, *, points: int) -> Drawn | None:
    curves = {run.name: run.evaluations[name] for run in runs if name in run.evaluations}
    title = f"{name.capitalize()} on the test set"
    return _lines(f"eval-{name}", title, ".4~g", curves=curves, points=points)


def _lines(
    name: str, title: str, form: str, *, curves: dict[str, Curve], points: int, scale: float = 1.0
) -> Drawn | None:
    """Return curves over one another; a click on a legend entry shows only its curve."""
    if not curves:
        return None
    room = max(points // len(curves), 8)
    rows: list[dict[str, Any]] = []
    for label, curve in curves.items():
        steps, values = thin(curve.steps, curve.values, points=room)
        rows += [
            {"s": step, "v": float(f"{value * scale:.4g}"), "c": label}
            for step, value in zip(steps, values, strict=True)
        ]
    chosen = alt.selection_point(fields=["c"], bind="legend", name="chosen")
    zoom = alt.selection_interval(bind="scales", zoom="wheel![event.altKey]", name="zoom")
    tooltip = [
        alt.Tooltip("c:N", title="curve"),
        alt.Tooltip("s:Q", title="step", format=","),
        alt.Tooltip("v:Q", title=title, format=form),
    ]
    few = len(rows) <= _FEW
    # Vega would round the only label of an axis, 0.03, to 0.
    is_flat = len({row["v"] for row in rows}) == 1
    shown = legend(curves, columns=1 if len(curves) > 6 else 3) if len(curves) > 1 else None
    chart = (
        alt.Chart(alt.InlineData(rows))
        .mark_line(clip=True, strokeWidth=1.5, point={"size": 18} if few else False)  # or page.js
        .encode(
            x=alt.X(
                "s:Q",
                title="step",
                axis=alt.Axis(format="~s"),
                scale=alt.Scale(nice=False, padding=4),
            ),
            y=alt.Y(
                "v:Q",
                title=None,
                axis=alt.Axis(format=form) if is_flat else alt.Undefined,
                scale=alt.Scale(zero=False),
            ),
            color=alt.Color("c:N", title=None, legend=shown, sort=list(curves)),
            opacity=alt.when(chosen).then(alt.value(1.0)).otherwise(alt.value(0.1)),
            tooltip=tooltip,
        )
        .add_params(chosen, zoom)
    )
    described = {label: _in_words(curve, scale) for label, curve in curves.items()}
    words = "; ".join(f"{label}: {text}" for label, text in described.items())
    words = words if len(curves) > 1 else next(iter(described.values()))
    positive = min(row["v"] for row in rows) > 0
    return drawn(name, title, words, chart=chart, can_be_log=positive)


def _in_words(curve: Curve, scale: float) -> str:
    least = min(range(len(curve.values)), key=curve.values.__getitem__)
    most = max(range(len(curve.values)), key=curve.values.__getitem__)
    first, last, low, high = (
        f"{curve.values[at] * scale:,.4g} at step {curve.steps[at]:,}"
        for at in (0, -1, least, most)
    )
    return f"from {first} to {last}; lowest {low}, highest {high}"
