"""The launchers, a folder each: facts (`__init__.py`), status rules, templates.

`shared/` holds the templates that several of them include.
"""

from functools import cache
from importlib import import_module
from pathlib import Path

from k8s.plan.launcher import Launcher
from trainer.config.exits import Exit, Fault

TEMPLATES = Path(__file__).parent


@cache
def known() -> list[str]:
    """Return the names of all launchers."""
    return sorted(file.parent.name for file in TEMPLATES.glob("*/__init__.py"))


def find(name: str) -> Launcher:
    """Return a launcher by its name. Raises Fault(64)."""
    if name not in known():
        raise Fault(
            Exit.CONFIG, f"launcher={name!r}: no such launcher; choose {', '.join(known())}"
        )
    launcher = import_module(f"k8s.launchers.{name}").LAUNCHER
    assert isinstance(launcher, Launcher)  # noqa: S101  # tells mypy
    return launcher
