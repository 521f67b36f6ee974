"""Read the documentation's pages: links, anchors, and the commands of each block.

for block in blocks(): print(block.page, block.lines)
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

# Pages of rendered diffs have separate tests: tests/unit/k8s/render/test_features.py.
_FOLDERS = (".github", "docker", "k8s", "tests", "trainer")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in _FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)
PROSE = [page for page in PAGES if page.parent.name != "features"]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of commands; a line that ends in a backslash is joined with the next."""

    page: str
    number: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def fenced(text: str, language: str) -> list[str]:
    """Return the contents of the fenced blocks of a language."""
    return [body for name, body in _FENCE.findall(text) if name == language]


def recipe(page: str, heading: str) -> list[tuple[str, str]]:
    """Return language and content of each fenced block below a heading of a page, in order."""
    text = read(ROOT / page)
    below = text.partition(f"\n## {heading}\n")[2]
    found: list[tuple[str, str]] = _FENCE.findall(re.split(r"^## ", below, flags=re.MULTILINE)[0])
    assert found, f"{page}: no code below {heading!r}"
    return found


def prose(text: str) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[tuple[str, str]]:
    """Return the relative links of a page: path, empty for the page itself, and anchor."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    relative = [target for target in targets if not re.match(r"[a-z]+:", target)]
    return [(path, anchor) for path, _, anchor in (target.partition("#") for target in relative)]


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes for a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks() -> list[Block]:
    """Return every block of shell commands of every page."""
    found = []
    for page in PROSE:
        for number, body in enumerate(fenced(read(page), "sh"), start=1):
            lines = body.replace("\\\n", " ").splitlines()
            kept = tuple(line for line in lines if line.strip() and not line.startswith("#"))
            found.append(Block(str(page.relative_to(ROOT)), number, kept))
    return found
