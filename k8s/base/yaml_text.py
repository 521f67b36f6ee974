"""Read YAML with limits, and write YAML without anchors that every parser reads in the same way.

python -c "from k8s.base.yaml_text import dump; print(dump([{'a': 'no'}]))"
"""

import contextlib
import json
import math
import os
import re
import reprlib
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from k8s.base.errors import config_error, in_one_line


class _Dumper(yaml.CSafeDumper):
    """PyYAML's dumper, with strings that every parser reads as strings."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True


# What is written without quotes. PyYAML would also write y, 1e-05 and 0o7 so, because it reads them as
# text; kubectl's parser reads them as a boolean and as numbers, which the API then refuses.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(:[A-Za-z0-9_./@-]+)*|[0-9]+(\.[0-9]+)?[KMGTPE]i")
_WORDS_FOR_OTHERS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def _text(dumper: yaml.CSafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_FOR_OTHERS
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


class Whole(int):
    """A whole number that is written in another way than Python writes it, such as 0123."""

    text: str


class Real(float):
    """A number that is written in another way than Python writes it, such as 3.10."""

    text: str


_Dumper.add_representer(Whole, yaml.CSafeDumper.represent_int)
_Dumper.add_representer(Real, yaml.CSafeDumper.represent_float)


class _Loader(yaml.CSafeLoader):
    """Reads YAML as Kubernetes' tools do: a date is text, and a duplicate key is an error."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # overrides PyYAML's own
        first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  # PyYAML's signature
        """Make a node's value. For `0x_` or `!!bool maybe` PyYAML raises other errors than YAMLError."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            problem = f"{reprlib.repr(node.value)} is not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
        if type(value) in (int, float) and str(value) != node.value and math.isfinite(value):
            value = Whole(value) if type(value) is int else Real(value)
            value.text = node.value
        return value

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002  # PyYAML's signature
    ) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def dump(objects: Sequence[Any]) -> str:
    """Write objects as one stream, each as one document."""
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1
    )


def as_json(value: Any) -> str:
    """Write JSON that is also YAML: YAML does not join the halves of a surrogate pair."""

    def one_escape(pair: re.Match[str]) -> str:
        character: str = json.loads('"' + pair[0] + '"')
        return f"\\U{ord(character):08x}"

    return re.sub(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", one_escape, json.dumps(value))


def parse(text: str) -> list[Any]:
    """Read the documents that a template wrote."""
    return list(yaml.load_all(text, _Loader))


def read_text(path: Path, *, label: str) -> str:
    """Return the text of a file. Raises Fault(64), its text beginning with `label`."""
    try:
        with path.open("rb") as file:
            # A pipe has no size. Ask for little more: read() allocates all that it is asked for.
            size = os.fstat(file.fileno()).st_size or _MOST_BYTES
            text = file.read(min(size, _MOST_BYTES) + 1)
        if len(text) > _MOST_BYTES:
            raise config_error(f"{label}: more than {_MOST_BYTES >> 20} MiB")
        return text.decode("utf-8-sig")
    except OSError as error:
        raise config_error(f"{label}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise config_error(f"{label}: not UTF-8 at byte {error.start}") from None


def read(text: str, *, label: str) -> list[Any]:
    """Read the documents in a user's text, without empty ones. Raises Fault(64)."""
    found: list[Any] = []
    with _yaml_errors(label):
        check_size(text)
        found += (document for document in parse(text) if document)
    return found


def read_one(text: str, *, label: str) -> Any:
    """Read the one document in a user's text. Raises Fault(64)."""
    with _yaml_errors(label):
        check_size(text)
        return yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader


@contextlib.contextmanager
def _yaml_errors(label: str) -> Iterator[None]:
    """Turn an error of the YAML parser into a Fault(64) with its line and column."""
    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if str(getattr(error, "context", None)).startswith("while scanning"):
            mark = getattr(error, "context_mark", None)  # where the key or the quote begins
        place = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
        problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
        problem = _PLAINER.get(problem, problem)
        raise config_error(f"{place}: not YAML: {in_one_line(problem)}") from None
    except RecursionError:
        raise config_error(f"{label}: nested too deeply, or refers to itself") from None


# What libyaml says, as the reader of a job file needs it.
_PLAINER = {
    "but found another document": "a second document starts here",
    "could not find expected ':'": "a key without ': ' after it",
    "found character that cannot start any token": "no value begins with this character: put text in "
    "quotes, and indent with spaces, not tabs",
    "found unexpected end of stream": "a quote that does not end",
}
_DEEPEST = 200
_MOST_VALUES = 200_000  # a rendered job has about 300
_MOST_BYTES = 16 << 20


def check_size(text: str) -> None:
    """Refuse a text that is nested too deeply or too large; an alias counts as what it repeats.

    Raises RecursionError for depth, because the parser's recursion would end the process, or YAMLError.
    """
    total = 0
    # The anchor of each open collection, and the total before it.
    begun: list[tuple[str | None, int]] = []
    sizes: dict[str | None, int] = {}  # by anchor
    for event in yaml.parse(text, yaml.CSafeLoader):
        match event:
            case yaml.CollectionStartEvent():
                begun.append((event.anchor, total))
                total += 1
            case yaml.CollectionEndEvent():
                anchor, before = begun.pop()
                sizes[anchor] = total - before
            case yaml.ScalarEvent():
                sizes[event.anchor] = 1
                total += 1
            case yaml.AliasEvent():
                if event.anchor in (anchor for anchor, _ in begun):
                    raise RecursionError
                total += sizes.get(event.anchor, 1)
        if len(begun) > _DEEPEST:
            raise RecursionError
        if total > _MOST_VALUES:
            problem = f"more than {_MOST_VALUES:,} values, each alias counted as what it repeats"
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
