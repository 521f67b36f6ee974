"""Writes the tables of the pages that come from the code: settings, modes, tasks, exit codes and others.

python -m trainer.tools.reference      # rewrite what stands between the markers on every page
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from trainer.config.catalogue import catalogue
from trainer.config.environment import variable
from trainer.config.exits import MEANINGS, Exit
from trainer.config.modes import MODES, Refusal
from trainer.config.settings import Settings
from trainer.diagnosis.causes import causes as diagnosis_causes
from trainer.report.events import FIELDS
from trainer.report.goodput import CAUSES
from trainer.report.live.figures import CHECKPOINTS, DISK, EVALUATION, FAULTS, FIGURES, SPENT

_ROOT = Path(__file__).parents[2]
_SCHEMA = _ROOT / "k8s" / "job.schema.json"


def main() -> None:
    """Rewrite the generated tables of every page."""
    for page in pages():
        page.write_text(rewrite(page.read_text(encoding="utf-8")), encoding="utf-8")


def pages() -> list[Path]:
    """Return the pages that hold a generated table."""
    found = [*_ROOT.glob("*.md"), *_ROOT.glob("*/*.md")]
    return sorted(page for page in found if "<!-- /" in page.read_text(encoding="utf-8"))


def rewrite(text: str) -> str:
    """Return a page with new tables between its markers; a marker names the function of its table."""
    for table in _TABLES:
        begin, end = f"<!-- {table.__name__} -->\n", f"<!-- /{table.__name__} -->"
        if begin in text:
            head, _, rest = text.partition(begin)
            text = head + begin + table() + end + rest.partition(end)[2]
    return text


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
        (
            f"`{name}`",
            mode.summary,
            ", ".join(f"`{axis}`" for axis in mode.axes),
            ", ".join(_refused(one) for one in mode.refuses),
        )
        for name, mode in MODES.items()
    )
    return _table(("mode", "what it does", "axes of the mesh", "refuses"), rows)


def _refused(one: Refusal) -> str:
    value = "" if one.value is None else f"={one.value}"
    return f"`{variable(one.setting)}{value}`"


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
    return _table(("code", "meaning", "what a launcher does"), rows)


def figures() -> str:
    """Return the table of what is served to Prometheus."""
    rows = [(f"`{one.name}`", one.text) for one in FIGURES]
    labelled = (EVALUATION, SPENT, CHECKPOINTS, FAULTS)
    rows += [(f"`{name}{{{label}}}`", text) for name, label, text in labelled]
    rows += [(f"`{name}`", text) for name, text in DISK]
    return _table(("figure", "meaning"), rows)


def events() -> str:
    """Return the table of events and their fields."""
    rows = (
        (f"`{event}`", ", ".join(f"`{name}`" for name in names.split(", ")), text)
        for event, fields in FIELDS.items()
        for names, text in fields.items()
    )
    return _table(("event", "field", "meaning"), rows)


def causes() -> str:
    """Return the table of what a run's wall time goes into."""
    return _table(("cause", "what it is"), ((f"`{one}`", text) for one, text in CAUSES.items()))


def diagnosis() -> str:
    """Return the table of causes of failures."""
    rows = ((f"`{cause.name}`", cause.meaning, cause.do) for cause in diagnosis_causes())
    return _table(("cause", "what it means", "what to do"), rows)


def keys() -> str:
    """Return the table of a job file's keys, from its JSON Schema."""
    schema = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    rows = (
        (f"`{path}`", _default(key.get("default")), key["description"])
        for path, key in _keys(schema, schema["$defs"], above="")
    )
    return _table(("key", "default", "meaning"), rows)


def _keys(node: dict[str, Any], known: dict[str, Any], *, above: str) -> Iterator[tuple[str, Any]]:
    """Yield each described key below a schema node, with its path; `trainer` has its own table."""
    for name, key in node.get("properties", {}).items():
        path = above + name
        if "description" in key:
            yield path, key
        for inner in (key, key.get("items", {}), *key.get("anyOf", ()), *key.get("oneOf", ())):
            target = known.get(inner.get("$ref", "").rpartition("/")[2], {})
            if name != "trainer":
                yield from _keys(target, known, above=f"{path}{'[]' if 'items' in key else ''}.")


_TABLES = (settings, modes, tasks, exits, figures, events, causes, diagnosis, keys)


def _default(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value in (None, "", [], {}) else f"`{value}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    main()
