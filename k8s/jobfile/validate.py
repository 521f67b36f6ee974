"""A job file's values to its model: refusals in one line, and the trainer's settings.

render.py job.yaml --check
"""

import difflib
import re
import reprlib
import typing
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel, to_snake

from k8s.base.errors import config_error
from k8s.jobfile.spec import JobSpec
from trainer.config.environment import parse, plain
from trainer.config.own_settings import check_built_in
from trainer.config.settings import Settings

_FIELDS = {to_camel(field): field for field in Settings.model_fields}
OWN_KEY = "task[A-Z][A-Za-z0-9]*"  # trainer.taskLayers: a setting of your own task


def validate(values: dict[str, Any]) -> JobSpec:
    """Check a job file's values. Raises Fault(64), its text beginning with the key's path."""
    try:
        return JobSpec.model_validate(values)
    except ValidationError as error:
        raise config_error(_explain(error)) from None


def settings_of(spec: JobSpec) -> Settings:
    """Return the trainer's settings, checked as the trainer will. Raises Fault(64)."""
    fields = dict(_FIELDS)
    texts: dict[str, str] = {}
    for key, value in spec.trainer.items():
        if re.fullmatch(OWN_KEY, key):
            fields[key] = to_snake(key)
        if key not in fields:
            near = difflib.get_close_matches(to_camel(key), fields, n=1, cutoff=0.5)
            hint = (
                f"did you mean trainer.{near[0]}?" if near else "trainer/SETTINGS.md lists them all"
            )
            raise config_error(f"trainer.{key}: no such setting; {hint}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if value is not None and text != "":
            texts[fields[key]] = text
    settings = parse(texts, label=label)
    check_built_in(settings, label=label)
    return settings


def label(field: str) -> str:
    """Return how the job file calls a setting."""
    return f"trainer.{to_camel(field)}"


_MESSAGES = {
    "string_type": "must be text; write it in quotes",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "list_type": "must be a list, such as [a, b]",
    "too_short": "must not be empty",
}


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    # What is in angles tells the kinds of a value apart, and is no key but where there is no such key.
    unknown = first["loc"][-1:] if first["type"] == "extra_forbidden" else ()
    location = [
        part
        for part in first["loc"]
        if part in unknown or (part != "[key]" and not str(part).startswith("<"))
    ]
    if location[:1] == ["trainer"]:
        location = location[:2]  # below it are the names of the types that were tried
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)[1:]
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        known = _keys_at(location[:-1])
        return f"{path}: no such key; {hint(str(location[-1]), known, path=path)}"
    if kind == "missing":
        return f"{path}: missing; it is {_field_at(location).description}"
    message = _MESSAGES.get(kind, plain(first["msg"]))
    if kind in ("model_type", "list_type") and (known := _keys_at(location)):
        message = "must be a " + ("mapping" if kind == "model_type" else "list of mappings")
        message += f"; choose keys from {', '.join(known)}"
    if location[:1] == ["trainer"] and len(location) > 1:
        message = "must be one value: text, a number, true or false"
        if re.fullmatch(OWN_KEY, str(location[1])):
            message += "; write a list or a mapping as text, such as '[1, 2]'"
    if kind == "value_error" and isinstance(value, dict):
        return message if message.startswith(path) else f"{path}: {message}"
    return f"{path}={reprlib.repr(value)}: {message}"


def hint(key: str, known: list[str], *, path: str) -> str:
    """Suggest a key for the unknown `key`, the last of `path`; `known` are the keys there."""
    deeper = [str(top.alias) for top in JobSpec.model_fields.values() if key in _keys_of(top)]
    if path == key and deeper:
        return f"did you mean {deeper[0]}.{key}?"
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"did you mean {path.removesuffix(key)}{near[0]}?"
    return f"choose {', '.join(known)}" if known else "there are no keys here"


def _keys_of(field: Any) -> list[str]:
    model = _model_of(field.annotation)
    return [str(one.alias) for one in model.model_fields.values()] if model else []


def _keys_at(location: list[Any]) -> list[str]:
    if location:
        field = _field_at(location)
        return _keys_of(field) if field else []
    return [str(field.alias) for field in JobSpec.model_fields.values()]


def _field_at(location: list[Any]) -> Any:
    model: type[BaseModel] | None = JobSpec
    field: Any = None
    for part in location:
        if isinstance(part, str) and model:
            fields = {one.alias: one for one in model.model_fields.values()}
            field = fields.get(part)  # a matrix has keys of the user's own
            model = _model_of(field.annotation) if field else None
    return field


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as `list[EnvVar]` or `DataVolume | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_of, typing.get_args(annotation))), None)
