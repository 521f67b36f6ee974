"""The recipes of trainer/SCRIPTS.md are lines of the scripts that the tests run."""

import pytest

from tests.conftest import ROOT
from tests.house import pages

HEADINGS = {
    "PyTorch": "ddp",
    "accelerate": "accelerate",
    "transformers": "transformers",
    "Lightning": "lightning",
    "DeepSpeed": "deepspeed",
}


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_recipe_has_only_lines_of_its_script(heading: str) -> None:
    text = pages.read(ROOT / "trainer" / "SCRIPTS.md")
    section = text.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    shown = "\n".join(pages.fenced(section, "python"))
    script = pages.read(ROOT / "tests" / "frameworks" / "scripts" / f"train_{HEADINGS[heading]}.py")
    lines = {line.strip() for line in script.splitlines()}
    assert shown
    assert {line.strip() for line in shown.splitlines()} - lines == set()
