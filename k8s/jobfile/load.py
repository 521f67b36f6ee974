"""Job files: reads YAML, merges files left to right, applies --set, records where each key came from.

Mappings merge key by key, scalars replace, null takes a key away. Lists replace too, but a list of
mappings that each have a `name` is merged by it: an item replaces the one of its name or is added.
Nothing here knows which keys there are, but for podPatch.spec, where null takes away from the pod.

    render.py base.yaml job.yaml --set nodes=4 --set 'env[0].value=x'
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k8s.base.errors import config_error
from k8s.base.yaml_text import read_one, read_text


@dataclass(frozen=True)
class JobFile:
    """The merged values. `origins` maps a key's path to the file, or option, that set it."""

    values: dict[str, Any]
    origins: dict[str, str]
    default_origin: str

    def origin_of(self, message: str) -> str:
        """Return where the key at the start of an error's text was written."""
        path = re.split(r"[=:] ?", message, maxsplit=1)[0]
        while path:
            within = (key for key in self.origins if key.startswith((f"{path}.", f"{path}[")))
            if origin := self.origins.get(path) or self.origins.get(next(within, "")):
                return origin
            path = re.sub(r"(\.[^.\[\]]*|\[[^\]]*\]|^[^.\[\]]*)$", "", path)
        return self.default_origin

    def folder_of(self, key: str) -> Path:
        """Return what a path is relative to: its file's folder; for an option or a pipe the current."""
        origin = self.origin_of(f"{key}:")
        return Path(origin).parent if origin != OPTION and Path(origin).is_file() else Path()


OPTION = "--set"


def read(paths: Sequence[str], settings: Sequence[str] = ()) -> JobFile:
    """Read and merge job files, then apply `settings`, each KEY=VALUE. Raises Fault(64)."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for path in paths:
        _merge(values, _load(path), at="", origin=path, origins=origins)
    for setting in settings:
        _set(values, setting, origins)
    return JobFile(_without_nulls(values), origins, paths[-1])


def varied(job: JobFile, settings: Mapping[str, Any]) -> JobFile:
    """Return a job file with the values that its matrix gives to some keys. Raises Fault(64)."""
    values, origins = copy.deepcopy(job.values), dict(job.origins)
    for path, value in settings.items():
        label = f"matrix.{path}"
        _put(values, path, value, label=label, origin=job.origin_of(f"{label}:"), origins=origins)
    return replace(job, values=_without_nulls(values), origins=origins)


PROFILES = Path(__file__).parents[1] / "profiles"


def profile(name: str) -> str:
    """Return the path of a profile by its name. Raises Fault(64)."""
    known = {path.stem: path for path in sorted(PROFILES.glob("*.yaml"))}
    if name not in known:
        choices = ", ".join(known)
        raise config_error(f"--profile {name}: no such profile; choose {choices}")
    return str(known[name])


def _load(path: str) -> dict[str, Any]:
    value = _parse(read_text(Path(path), label=path), where=path)
    if not isinstance(value, dict):
        seen = "is empty" if value is None else f"holds {_kind(value)}"
        raise config_error(f"{path}: {seen}; a job file is a mapping, e.g. name: my-job")
    return value


def _parse(text: str, *, where: str) -> Any:
    value = read_one(text, label=where)
    _check(value, at="", where=where)
    return _copied(value)


def _copied(value: Any) -> Any:
    """Copy mappings and lists: YAML gives one object for all places of an alias; --set changes one."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _check(value: Any, *, at: str, where: str) -> None:
    """Refuse what neither a manifest nor an environment can hold."""
    match value:
        case dict():
            for key, item in value.items():
                # run.exitCodes is a map of numbers.
                if isinstance(key, int) and (at or where).endswith("exitCodes"):
                    continue
                if not isinstance(key, str):
                    raise config_error(
                        f"{where}: {_join(at, str(key))}: the key must be text; put it in quotes"
                    )
                _check(key, at=_join(at, key), where=where)
                _check(item, at=_join(at, key), where=where)
        case list():
            for index, item in enumerate(value):
                _check(item, at=f"{at}[{index}]", where=where)
        case str():
            if "\0" in value or re.search("[\ud800-\udfff]", value):
                raise config_error(
                    f"{where}: {ascii(at)[1:-1]}={value!a}: contains NUL or a lone surrogate"
                )
        case bool() | int() | float() | None if not _is_long(value):
            pass
        case _:
            raise config_error(f"{where}: {at}: {_kind(value)} is not supported; quote it")


def _is_long(value: Any) -> bool:
    """Return whether a value is a number that nothing here is; Python writes none of 5,000 digits."""
    return isinstance(value, int) and value.bit_length() > 4096


def _kind(value: Any) -> str:
    kinds: dict[type, str] = {list: "a list", str: "text", bytes: "binary data"}
    if _is_long(value):
        return f"a number of {value.bit_length():,} bits"
    return kinds.get(type(value), type(value).__name__)


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _merge(
    base: dict[str, Any], over: dict[str, Any], *, at: str, origin: str, origins: dict[str, str]
) -> None:
    for key, value in over.items():
        path = _join(at, key)
        if isinstance(value, dict):
            if not isinstance(base.get(key), dict):
                base[key] = {}
                origins[path] = origin
            _merge(base[key], value, at=path, origin=origin, origins=origins)
        elif _named(value) and _named(base.get(key)):
            taken = {one["name"] for one in value}
            kept = [one for one in base[key] if one["name"] not in taken]
            base[key] = [*kept, *value]
            for index in range(len(kept), len(base[key])):
                _record(f"{path}[{index}]", origin, origins)
        else:
            base[key] = value
            _record(path, origin, origins)


def _named(value: Any) -> bool:
    """Return whether a value is a list, not empty, whose items can be told apart by their names."""
    if not isinstance(value, list) or not value:
        return False
    names = [one.get("name") for one in value if isinstance(one, dict)]
    return len(names) == len(value) and all(isinstance(name, str) for name in names)


def _set(values: dict[str, Any], setting: str, origins: dict[str, str]) -> None:
    path, equals, text = setting.partition("=")
    if not equals or not re.fullmatch(_PATH, path):
        raise config_error(f"--set {setting!r}: must be KEY=VALUE, e.g. trainer.lr=0.1")
    label = f"--set {path}"
    value = _parse(text, where=label)
    _put(values, path, value, label=label, origin=OPTION, origins=origins)


_PATH = r"[^.\[\]]+(\.[^.\[\]]+|\[[^\[\]]+\])*"


def parts_of(path: str) -> list[str]:
    """Return the keys and [items] of a path as --set takes it; empty when it is none."""
    return re.findall(r"[^.\[\]]+|\[[^\[\]]+\]", path) if re.fullmatch(_PATH, path) else []


def _put(
    values: dict[str, Any],
    path: str,
    value: Any,
    *,
    label: str,
    origin: str,
    origins: dict[str, str],
) -> None:
    parts = parts_of(path)
    holder: Any = values
    canonical = ""
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        key = _position(holder, part, label)
        canonical = f"{canonical}[{key}]" if isinstance(holder, list) else _join(canonical, key)
        if following is None:
            holder[key] = value
        else:
            if isinstance(holder, dict) and holder.get(key) is None:
                holder[key] = [] if re.fullmatch(r"\[[0-9]+\]", following) else {}
            holder = holder[key]
    _record(canonical, origin, origins)


def _record(path: str, origin: str, origins: dict[str, str]) -> None:
    for old in [key for key in origins if key.startswith((f"{path}.", f"{path}["))]:
        del origins[old]
    origins[path] = origin


def _position(holder: Any, part: str, label: str) -> Any:
    """Return the key or index in `holder` that `part` of a path stands for."""
    name = part.strip("[]")
    if isinstance(holder, dict):
        return name
    if isinstance(holder, list) and name.isdecimal():
        if int(name) == len(holder):
            holder.append({})
        if int(name) < len(holder):
            return int(name)
        raise config_error(f"{label}: the list has {len(holder)} items; [{len(holder)}] adds one")
    if isinstance(holder, list):
        raise config_error(f"{label}: {part} would be in a list; write [NUMBER] before it")
    raise config_error(f"{label}: {part} cannot be set, because {holder!r} is not a mapping")


def _without_nulls(values: dict[str, Any], at: str = "") -> dict[str, Any]:
    """Take keys away that are null; below podPatch.spec null has a meaning of its own."""
    return {
        key: _without_nulls(value, path)
        if isinstance(value, dict) and (path := _join(at, key)) != "podPatch.spec"
        else value
        for key, value in values.items()
        if value is not None
    }
