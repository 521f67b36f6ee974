"""The built-in tasks. Their files are parsed, not run, so this needs no torch.

The first line of a task's docstring says what it learns. These constants of its file are read:

DEFAULTS: the task's own defaults of settings. MEASURED: the result with these defaults.
SPLITS: what the axis tp must divide in its model, by name. CUTS: the number of pieces of its model, for
stages. Either may be a dict by TRAINER_MODEL.
NEEDS_DATA: the task cannot train without TRAINER_DATA. OWN_SETTINGS: it has its own settings, in
own_settings.py. The renderer plans with the same constants.
"""

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

_CONSTANTS = ("DEFAULTS", "MEASURED", "SPLITS", "CUTS", "NEEDS_DATA", "OWN_SETTINGS")
_TASKS = Path(__file__).parents[1] / "tasks"


@dataclass(frozen=True)
class Entry:
    """What is known of a task."""

    summary: str
    defaults: dict[str, Any] = field(default_factory=dict)
    measured: str = ""
    splits: dict[str, Any] = field(default_factory=dict)
    cuts: int | dict[str, int] | None = None
    needs_data: bool = False
    own_settings: bool = False

    def divisible(self, model: str | None) -> dict[str, int]:
        """Return what tp has to divide; empty if the model cannot be split."""
        if not any(isinstance(value, dict) for value in self.splits.values()):
            return self.splits
        found: dict[str, int] = self.splits.get(model or self.defaults["model"], {})
        return found

    def pieces(self, model: str | None) -> int | None:
        """Return how many pieces the model has; 0 if it cannot be cut, None if it is not known."""
        if isinstance(self.cuts, dict):
            return self.cuts.get(model or self.defaults["model"], 0)
        return self.cuts


def catalogue() -> dict[str, Entry]:
    """Return the built-in tasks by name."""
    return {name: find_task(name) for name in task_names()}


@cache
def task_names() -> list[str]:
    """Return the names of the built-in tasks: the files of `trainer/tasks/`."""
    files = sorted(path.stem for path in _TASKS.glob("*.py") if path.stem[0] != "_")
    return [stem.replace("_", "-") for stem in files]


@cache
def find_task(name: str) -> Entry:
    """Return what is known of a built-in task."""
    path = _TASKS / f"{name.replace('-', '_')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in _CONSTANTS
    }
    summary = (ast.get_docstring(tree) or path.stem).splitlines()[0]
    return Entry(summary, **{name.lower(): value for name, value in constants.items()})
