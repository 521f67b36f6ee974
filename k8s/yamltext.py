"""YAML as text that reads the same to every parser, and never with anchors.

PyYAML goes through a tree of nodes in Python both ways, which took two thirds of the time of a
rendering. Writing plain data takes a fourteenth of that time; what a template wrote is read in half.

python -c "from k8s.yamltext import dump; print(dump([{'a': 'no'}]))"
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.representer import SafeRepresenter

# Plain words only. PyYAML itself writes y, 1e-05 or 0o7 without quotes, since it reads them as text; the
# parser of kubectl reads a truth value and numbers, and the API then refuses them.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(:[A-Za-z0-9_./@-]+)*|[0-9]+(\.[0-9]+)?[KMGTPE]i")
_WORDS_FOR_OTHERS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
# What JSON writes as it is and YAML must not hold, or reads as the end of a line.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def dump(objects: Sequence[Any]) -> str:
    """Write objects as one stream, each a document of its own."""
    lines: list[str] = []
    for one in objects:
        if lines:
            lines.append("---\n")
        if isinstance(one, (dict, list)) and one:
            _write(one, "", first="", lines=lines)
        else:
            lines.append(f"{_scalar(one)}\n")
    return "".join(lines)


def _write(value: Any, indent: str, *, first: str, lines: list[str]) -> None:
    """Add the lines of a mapping or list that is not empty; `first` stands before its first item."""
    lead = first
    for key in value:
        if isinstance(value, list):
            item, head, deeper = key, f"{lead}-", f"{indent}  "
        else:
            item, head = value[key], f"{lead}{_scalar(key)}:"
            deeper = indent if isinstance(item, list) else f"{indent}  "
        if not isinstance(item, (dict, list)) or not item:
            lines.append(f"{head} {_scalar(item)}\n")
        elif isinstance(value, list):
            _write(item, deeper, first=f"{head} ", lines=lines)
        else:
            lines.append(f"{head}\n")
            _write(item, deeper, first=deeper, lines=lines)
        lead = indent


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _word(value)
    if isinstance(value, (dict, list)):
        return "{}" if isinstance(value, dict) else "[]"
    if value is None or isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, float):
        return str(SafeRepresenter().represent_float(value).value)
    return _word(str(value))


@lru_cache(4096)
def _word(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_FOR_OTHERS:
        return text
    return _UNPRINTABLE.sub(_escaped, json.dumps(text, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class Loader(yaml.CSafeLoader):
    """YAML as Kubernetes' own tools read it: a date is text, since no field holds one."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # overrides PyYAML's own
        first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


class _Lean(Loader):
    """Of what a template wrote: no tag, anchor or merge, and the same few words over and over."""

    def resolve(self, kind: type[Node], value: str, implicit: tuple[bool, bool]) -> str:
        if kind is ScalarNode:
            return _tag(value) if implicit[0] else _TEXT
        return "tag:yaml.org,2002:map" if kind is MappingNode else "tag:yaml.org,2002:seq"

    def descend_resolver(self, *_: Any) -> None:
        """Pass over what no template has: resolvers by path."""

    ascend_resolver = descend_resolver


_TEXT = "tag:yaml.org,2002:str"
_READ: dict[str, Callable[[str], Any]] = {
    _TEXT: str,
    "tag:yaml.org,2002:null": lambda _: None,
    "tag:yaml.org,2002:bool": "true".__eq__,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
}


@lru_cache(4096)
def _tag(value: str) -> str:
    forms = Loader.yaml_implicit_resolvers.get(value[:1], [])
    return next((tag for tag, form in forms if form.match(value)), _TEXT)


def parse(text: str) -> list[Any]:
    """Read the documents that a template wrote."""
    loader = _Lean(text)
    try:
        found = []
        while loader.check_node():
            node = loader.get_node()
            assert node  # noqa: S101  # tells mypy
            found.append(_value(node))
        return found
    finally:
        loader.dispose()


def _value(node: Node) -> Any:
    if isinstance(node, MappingNode):
        return {_value(key): _value(item) for key, item in node.value}
    if isinstance(node, SequenceNode):
        return [_value(item) for item in node.value]
    return _READ[node.tag](node.value)
