"""The README's tables, made from what the code reads: settings, modes, tasks, exit codes.

python -m trainer.tools.reference README.md      # rewrite what stands between the markers
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from pydantic.alias_generators import to_camel

from trainer.config.catalogue import catalogue
from trainer.config.environment import variable
from trainer.config.exits import MEANINGS, Exit
from trainer.config.modes import MODES
from trainer.config.settings import Settings


def settings() -> str:
    """Return the table of settings, one row a field of the model."""
    rows = (
        (f"`{variable(name)}`", f"`{to_camel(name)}`", _default(field.default), field.description)
        for name, field in Settings.model_fields.items()
    )
    return _table(("variable", "in the job file", "default", "meaning"), rows)


def modes() -> str:
    """Return the table of modes."""
    rows = (
        (f"`{name}`", mode.summary, ", ".join(f"`{axis}`" for axis in mode.axes))
        for name, mode in MODES.items()
    )
    return _table(("mode", "what it does", "axes of the mesh"), rows)


def tasks() -> str:
    """Return the table of the built-in tasks."""
    rows = (
        (
            f"`{name}`",
            entry.summary,
            ", ".join(f"`{variable(key)}={value}`" for key, value in entry.defaults.items()),
            entry.measured,
        )
        for name, entry in catalogue().items()
    )
    return _table(("task", "what it learns", "its own defaults", "two CPU cores"), rows)


def exits() -> str:
    """Return the table of exit codes."""
    rows = ((str(int(code)), MEANINGS[code].text, MEANINGS[code].action) for code in Exit)
    return _table(("code", "meaning", "what a launcher is told to do"), rows)


def figures() -> str:
    """Return the table of what is served to Prometheus."""
    from trainer.report import prometheus  # noqa: PLC0415  # imports torch; the other tables do without

    rows = [(f"`{one.name}`", one.text) for one in prometheus.FIGURES]
    labelled = (prometheus.EVALUATION, prometheus.CHECKPOINTS, prometheus.FAULTS)
    rows += [(f"`{name}{{{label}}}`", text) for name, label, text in labelled]
    return _table(("figure", "meaning"), rows)


_TABLES = {
    "settings": settings,
    "modes": modes,
    "tasks": tasks,
    "exits": exits,
    "figures": figures,
}


def rewrite(text: str) -> str:
    """Return a document with every table between its markers made anew."""
    for name, table in _TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, _, rest = text.partition(begin)
        text = head + begin + table() + end + rest.partition(end)[2]
    return text


def _default(value: object) -> str:
    return "" if value is None or value == "" else f"`{value}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(rewrite(document.read_text(encoding="utf-8")), encoding="utf-8")
