"""Explain a key of the job file, from the JSON Schema of the job file.

render.py --explain scheduling.queue
"""

import json
import re
from typing import Any

from pydantic.alias_generators import to_snake

from k8s import launchers
from k8s.base.errors import config_error
from k8s.cli.schema import json_schema
from k8s.jobfile import validate
from trainer.config.environment import variable


def explain(key: str) -> str:
    """Return a key's meaning, form and default, and the launchers that refuse it. Raises Fault(64)."""
    schema = json_schema()
    at, path = schema, ""
    for part in re.sub(r"\[[0-9]*\]", "", key).split("."):
        keys = _keys(at, schema)
        if path == "trainer" and re.fullmatch(validate.OWN_KEY, part):
            return (
                f"{path}.{part}: text, a number, true or false\n  a setting of the task's own, "
                f"{variable(to_snake(part))}; python -m trainer --help lists those of TRAINER_TASK"
            )
        if part not in keys:
            hint = validate.hint(part, list(keys), path=f"{path}.{part}".strip("."))
            raise config_error(f"--explain {key}: no such key; {hint}")
        at, path = keys[part], f"{path}.{part}".strip(".")
    lines = [f"{path}: {_form(at, schema)}", f"  {at.get('description', '')}"]
    if at.get("default") is not None and not isinstance(at["default"], (dict, list)):
        lines.append(f"  default: {json.dumps(at['default'])}")
    for name in launchers.known():
        for lacked, reason in launchers.find(name).lacks.items():
            if lacked == path:
                lines.append(f"  not on launcher {name}: {reason}")
    below = _keys(at, schema)
    width = max(map(len, below), default=0) + 2
    lines += [f"    {name:{width}}{one.get('description', '')}" for name, one in below.items()]
    return "\n".join(lines)


def _variants(at: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the forms a value may have, without null, each with its reference resolved."""
    forms = at.get("anyOf", at.get("oneOf"))
    if forms is not None:
        return [form for one in forms for form in _variants(one, schema)]
    name = at.get("$ref", "").rpartition("/")[2]
    form = schema["$defs"][name] if name else at
    return [] if form.get("type") == "null" else [form]


def _keys(at: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for form in _variants(at, schema):
        if "properties" in form:
            return dict(form["properties"])
        if "items" in form:
            return _keys(form["items"], schema)
    return {}


def _form(at: dict[str, Any], schema: dict[str, Any]) -> str:
    names = {"string": "text", "integer": "a whole number", "number": "a number"}
    names |= {"boolean": "true or false", "object": "a mapping"}
    found = []
    for form in _variants(at, schema):
        if "enum" in form:
            found.append("one of " + ", ".join(map(str, form["enum"])))
        elif form.get("type") == "array":
            found.append(
                "a list of " + {"a mapping": "mappings"}.get(_form(form["items"], schema), "texts")
            )
        else:
            kinds = form.get("type", "object")
            kinds = kinds if isinstance(kinds, list) else [kinds]
            found.append(" or ".join(names[str(kind)] for kind in kinds))
    return " or ".join(dict.fromkeys(found))
