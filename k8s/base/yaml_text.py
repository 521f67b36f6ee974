"""YAML that every parser reads in the same way, without anchors.

python -c "from k8s.base.yaml_text import dump; print(dump([{'a': 'no'}]))"
"""

import contextlib
import json
import re
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from k8s.base.errors import config_error, in_one_line


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
            problem = f"{reprlib.repr(node.value)} is not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


def dump(objects: Sequence[Any]) -> str:
    """Write objects as one stream, each a document of its own."""
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1
    )


def as_json(value: Any) -> str:
    """Write JSON that is YAML too: YAML does not join the halves of a surrogate pair."""

    def one_escape(pair: re.Match[str]) -> str:
        character: str = json.loads('"' + pair[0] + '"')
        return f"\\U{ord(character):08x}"

    return re.sub(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", one_escape, json.dumps(value))


def parse(text: str) -> list[Any]:
    """Read the documents that a template wrote."""
    return list(yaml.load_all(text, Loader))


def read_text(path: Path, *, label: str) -> str:
    """Return the text of a file. Raises Fault(64), its text beginning with `label`."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise config_error(f"{label}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise config_error(f"{label}: not UTF-8 at byte {error.start}") from None


def read(text: str, *, label: str) -> list[Any]:
    """Read the documents that a user wrote, without empty ones. Raises Fault(64)."""
    found: list[Any] = []
    with yaml_errors(label):
        check_depth(text)
        found += (document for document in parse(text) if document)
    return found


@contextlib.contextmanager
def yaml_errors(label: str) -> Iterator[None]:
    """Turn an error of the YAML parser into a Fault(64) with its line and column."""
    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        if problem == "but found another document":
            problem = "a second document begins here"
        raise config_error(f"{place}: not YAML: {in_one_line(problem)}") from None
    except RecursionError:
        raise config_error(f"{label}: nested too deeply, or refers to itself") from None


_DEEPEST = 1000


def check_depth(text: str) -> None:
    """Raise RecursionError where the parser's own recursion, in C, would end the process."""
    if len(text) < 10 * _DEEPEST:  # a level takes a character at least
        return
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise RecursionError
