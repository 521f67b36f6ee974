"""The pages are correct: links have targets, names exist, tables agree with the code."""

import ast
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.house import pages
from trainer.config.environment import KEY, variable
from trainer.config.settings import Settings
from trainer.diagnosis.causes import causes
from trainer.tools import reference

# Words for which CONTRIBUTING.md has plain ones. The changelog is not changed.
_NOT_USED = re.compile(
    r"\b(keeper|the roll|farewell|in vain|for want of|whoever|of its own accord|a defect here"
    r"|anew|nevertheless|for ever|one's own|to oneself)\b",
    re.IGNORECASE,
)
_WRITTEN = [page for page in pages.PROSE if page.name != "CHANGELOG.md"]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages.PAGES, ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = pages.read(page)
    broken = []
    for path, anchor in pages.links(text):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            broken.append(f"{path}: no such file")
        elif anchor and anchor not in pages.anchors(pages.read(target)):
            broken.append(f"{path}#{anchor}: no such heading")
    assert broken == []


def test_links_and_anchors_are_found_as_github_finds_them() -> None:
    text = "# A `mode`, and its Test\n[x](a.md#b) [y](https://z) [z](#c)\n```sh\n[no](no.md)\n```\n"
    assert pages.links(text) == [("a.md", "b"), ("", "c")]
    assert pages.anchors(text) == {"a-mode-and-its-test"}


@pytest.mark.parametrize("page", _WRITTEN, ids=_name)
def test_every_file_setting_and_target_named_exists(page: Path) -> None:
    text = re.sub(
        r"\[[^]]*\]\(.*?\)", "", pages.prose(pages.read(page))
    )  # links have a separate test
    recipes = re.compile(r"^## Add a .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)  # files to make
    paths = re.findall(r"\b(?:tests|trainer|k8s|docker)/[\w./*-]*\w", recipes.sub("", text))
    there = {path for path in paths for at in (ROOT, page.parent) if any(at.glob(path))}
    assert set(paths) - there == set()
    settings = {KEY, "TRAINER_REPORT", *(variable(name) for name in Settings.model_fields)}
    # TRAINER_TASK_... is a setting of a user's task.
    assert set(re.findall(r"TRAINER_(?!TASK_)[A-Z_]*[A-Z]", text)) <= settings
    makefile = pages.read(ROOT / "Makefile")
    fenced = "\n".join(pages.fenced(pages.read(page), "sh"))
    named = set(re.findall(r"`make ([a-z-]+)", text) + re.findall(r"\bmake ([a-z-]+)", fenced))
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", reference.pages(), ids=_name)
def test_the_tables_are_those_of_the_code(page: Path) -> None:
    assert reference.rewrite(pages.read(page)) == pages.read(page), "make docs"


def test_the_example_of_why_is_that_of_the_table_of_causes() -> None:
    lines = pages.fenced(pages.read(ROOT / "trainer/TROUBLESHOOTING.md"), "text")[0].splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines)
    cause = next(one for one in causes() if shown["cause"] == f"{one.meaning} ({one.name})")
    assert shown["do"] == cause.do.replace("{job}", "first")


def test_a_table_that_is_stale_or_missing_is_seen() -> None:
    marked = {
        name
        for page in reference.pages()
        for name in re.findall(r"<!-- /(\w+) -->", pages.read(page))
    }
    assert marked == {
        *("settings", "modes", "tasks", "exits", "figures", "keys", "events", "causes", "diagnosis")
    }
    stale = "<!-- exits -->\n| old |\n<!-- /exits -->\nrest"
    assert "| old |" not in reference.rewrite(stale)
    assert reference.rewrite(stale).endswith("<!-- /exits -->\nrest")
    settings = pages.read(ROOT / "trainer" / "SETTINGS.md")
    assert settings.count("| `TRAINER_") == len(Settings.model_fields)


@pytest.mark.parametrize("page", _WRITTEN, ids=_name)
def test_no_page_uses_a_word_that_the_glossary_has_replaced(page: Path) -> None:
    written = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", pages.read(page), flags=re.DOTALL)
    assert _NOT_USED.findall(written) == []


def test_the_code_uses_plain_words_too() -> None:
    files = [file for top in ("k8s", "trainer", "tests") for file in (ROOT / top).rglob("*.py")]
    here = Path(__file__)  # the list itself
    found = {_name(file): _NOT_USED.findall(pages.read(file)) for file in files if file != here}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize("folder", ["docker", "k8s", "tests", "trainer"])
def test_a_packages_page_shows_its_folders(folder: str) -> None:
    """The annotated tree at the start names every folder, and only what exists."""
    page = ROOT / folder / "README.md"
    (tree, *_) = pages.fenced(pages.read(page), "text")
    named = re.findall(r"^[├└]── ([\w./-]+)", tree, re.MULTILINE)
    assert [name for name in named if not (ROOT / folder / name).exists()] == []
    inside = (path for path in (ROOT / folder).iterdir() if path.is_dir())
    folders = {f"{path.name}/" for path in inside if path.name != "__pycache__"}
    assert folders <= set(named)


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("k8s/README.md", "Add a launcher"),
        ("trainer/README.md", "Add a mode"),
        ("trainer/README.md", "Add a task"),
    ],
)
def test_a_recipe_shows_code_that_parses(page: str, heading: str) -> None:
    blocks = pages.recipe(page, heading)
    code = [body for language, body in blocks if language == "python"]
    assert code
    for body in code:
        ast.parse(
            f"{{{body}}}" if re.match(r'"\w', body) else body
        )  # an entry of a table, or a file
