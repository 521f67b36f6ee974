"""Writes a report: one HTML file that loads nothing else and can be read without its script.

write([read(folder)], Path("report.html"))
"""

import contextlib
import functools
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

from trainer.config.exits import Exit, Fault
from trainer.report.history import History
from trainer.report.page import tables
from trainer.report.page.charts import draw
from trainer.report.verdict import verdict

_FOLDER = Path(__file__).parent


def write(runs: Sequence[History], path: Path) -> None:
    """Write the report of one run, or of several side by side. Raises Fault(64) or Fault(71)."""
    if path.is_dir():
        raise Fault(Exit.CONFIG, f"-o {path}: is a folder; name a file")
    text = page(runs)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # a read-only file system
            new.unlink()
        raise Fault(
            Exit.MACHINE, f"{path}: {error.strerror}; choose another file with -o"
        ) from None


def page(runs: Sequence[History], *, version: str = "") -> str:
    """Return the report as text. With a `version` the page reloads when its server has another one."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = draw(runs)
    several = len(runs) > 1
    metric = next((run.metric for run in runs if run.metric), "")
    text = environment.get_template("page.html.j2").render(
        title=f"{len(runs)} runs" if several else runs[0].name,
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),  # noqa: S704  # our own
        script=_script(),
        specs=jinja2.utils.htmlsafe_json_dumps([chart.spec for chart in charts]),
        charts=charts,
        runs=runs,
        rows=[_row(run, metric) for run in runs],
        metric=metric,
        differing=tables.differences(runs) if several else {},
        version=version,
        muster=metadata.version("muster") if _is_installed() else "",
        now=f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}",
        tables=tables,
    )
    return text.encode(errors="replace").decode()  # JSON may hold half a character


@functools.cache
def _script() -> str:
    return vl_convert.javascript_bundle((_FOLDER / "page.js").read_text(encoding="utf-8"))


def _row(run: History, metric: str) -> dict[str, Any]:
    """Return a run's row in the table of several: each figure as a number to sort by, and as text."""
    score = run.evaluations.get(metric)
    loss = run.curves.get("loss")
    figures: list[tuple[float, str]] = [
        (one.values[-1], f"{one.values[-1]:.4g}") if one else (float("-inf"), "-")
        for one in (score, loss)
    ]
    steps = max((one.last_step or 0 for one in run.attempts), default=0)
    wall, share = run.account.wall, run.account.goodput
    figures += [(steps, f"{steps:,}"), (wall, f"{wall:,.1f}"), (share, f"{share:.1%}")]
    figures += [(len(run.attempts), str(len(run.attempts)))]
    return {"name": run.name, "verdict": verdict(run), "figures": figures}


def _is_installed() -> bool:
    return any(True for _ in metadata.distributions(name="muster"))
