"""An Altair chart as a drawing that needs no script, and as a specification of an interactive one.

Altair with vl-convert, because its drawings need no script and its script takes 0.9 MB. Bokeh always
needs its script, which takes 1.3 MB. Text and axes have the page's colour (currentColor).

    drawn("loss", "Loss", "training: from 2.3 to 0.1", chart=alt.Chart(...))
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import altair as alt
import vl_convert

TEXT = "currentColor"
_WIDTH, _HEIGHT = 560, 230
CONTAINER = f"(containerSize()[0] || {_WIDTH})"  # pixels; Vega evaluates it in the browser
LABELS = 0.4  # share of the width that the labels of an axis may take
_PATHS = re.compile(r' d="[^"]*"')
_DIGITS = re.compile(r"(\.\d)\d+")  # a tenth of a pixel is enough


@dataclass(frozen=True)
class Drawn:
    """A chart: `svg` is shown until the script replaces it by `spec`; `words` say the same as text."""

    name: str
    title: str
    words: str
    svg: str
    spec: dict[str, Any]
    can_be_log: bool = False


def legend(labels: Iterable[str], *, columns: int, left: float = 45) -> alt.Legend:
    """Return a legend above a chart, with at most `columns` columns, and fewer on a narrow screen.

    `left`: pixels on the left of the chart, for the labels of its axis.
    """
    column = 24 + 5.5 * max(map(len, labels))  # a character has 5.5 pixels
    room = f"{CONTAINER} - min({left}, {CONTAINER} * {LABELS})"
    return alt.Legend(
        orient="top",
        columns=alt.ExprRef(f"clamp(floor(({room}) / {column}), 1, {columns})"),
        labelLimit=alt.ExprRef(f"{room} - 24"),
    )


def drawn(
    name: str,
    title: str,
    words: str,
    *,
    chart: Any,
    height: int = _HEIGHT,
    can_be_log: bool = False,
) -> Drawn:
    """Draw an Altair chart, and keep its specification. `height` in pixels."""
    axis = {
        "labelColor": TEXT,
        "titleColor": TEXT,
        "domainColor": TEXT,
        "tickColor": TEXT,
        "gridColor": TEXT,
        "gridOpacity": 0.12,
        "titleFontWeight": "normal",
    }
    spec = (
        chart.properties(width=_WIDTH, height=height, background="transparent")
        .configure(font="system-ui, sans-serif", aria=False)  # the figure has a label
        .configure_axis(**axis)
        .configure_legend(labelColor=TEXT, titleColor=TEXT)
        .configure_view(stroke=None)
        .to_dict()
    )
    # Names of files and folders need not be UTF-8, and JSON may hold half a character.
    spec = json.loads(json.dumps(spec, ensure_ascii=False).encode(errors="replace"))
    svg = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    svg = _PATHS.sub(lambda path: _DIGITS.sub(r"\1", path[0]), svg)
    svg = svg.replace("<svg ", '<svg aria-hidden="true" ', 1)  # its figure has a label
    moving = spec | {"width": "container"}
    return Drawn(name, title, words, svg, moving, can_be_log)
