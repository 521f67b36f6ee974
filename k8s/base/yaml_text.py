"""YAML as text that reads the same to every parser, and never with anchors.

python -c "from k8s.base.yaml_text import dump; print(dump([{'a': 'no'}]))"
"""

import json
import re
import reprlib
from collections.abc import Sequence
from typing import Any

import yaml


class _Dumper(yaml.CSafeDumper):
    """PyYAML's, with strings as every parser reads them."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True


# Plain words only. PyYAML itself writes y, 1e-05 or 0o7 without quotes, since it reads them as text; the
# parser of kubectl reads a truth value and numbers, and the API then refuses them.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(:[A-Za-z0-9_./@-]+)*|[0-9]+(\.[0-9]+)?[KMGTPE]i")
_WORDS_FOR_OTHERS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def _text(dumper: yaml.CSafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_FOR_OTHERS
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


class Loader(yaml.CSafeLoader):
    """YAML as Kubernetes' own tools read it: a date is text, since no field holds one."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # overrides PyYAML's own
        first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  # PyYAML's signature
        """Make a node's value; PyYAML's own parts raise anything for `0x_` or `!!bool maybe`."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            words = f"{reprlib.repr(node.value)} is no {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=words, problem_mark=node.start_mark) from None


def dump(objects: Sequence[Any]) -> str:
    """Write objects as one stream, each a document of its own."""
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1
    )


def as_json(value: Any) -> str:
    """Write JSON that is YAML too: YAML does not join the halves of a surrogate pair."""
    text = json.dumps(value)
    if "\\ud" not in text:
        return text
    return re.sub(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", _one_escape, text)


def _one_escape(pair: re.Match[str]) -> str:
    character: str = json.loads('"' + pair[0] + '"')
    return f"\\U{ord(character):08x}"


def parse(text: str | bytes) -> list[Any]:
    """Read the documents that a template wrote."""
    return list(yaml.load_all(text, Loader))


def read(text: str | bytes) -> list[Any]:
    """Read documents that somebody wrote. Raises YAMLError for whatever is wrong with them."""
    try:
        check_depth(text)
        return parse(text)
    except RecursionError:
        raise yaml.YAMLError(TOO_DEEP) from None


TOO_DEEP = "nested too deeply, or refers to itself"
_DEEPEST = 1000


def check_depth(text: str | bytes) -> None:
    """Raise RecursionError where the parser's own recursion, in C, would end the process."""
    if len(text) < 10 * _DEEPEST:  # a level takes a character at least
        return
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise RecursionError
