"""Wrong arguments of a command: one line, and exit code 64."""

import sys

import pytest

from tests.conftest import run_command
from trainer.config.exits import Exit

_MODULES = [
    "why",
    "runs",
    "report",
    "export",
    "check",
    "launch",
    "health",
    "preflight",
    "engine.ledger",
]


@pytest.mark.parametrize("module", ["trainer", *(f"trainer.{name}" for name in _MODULES)])
def test_wrong_arguments_are_a_line_and_64(module: str) -> None:
    command = [sys.executable, "-m", module]
    done = run_command([*command, "--bogus"])
    assert done.returncode == Exit.CONFIG
    assert done.stderr.startswith((f"{module.rpartition('.')[2]}: ", "trainer: "))
    assert done.stderr.endswith(f"; see python -m {module} --help (exit 64)\n")
    assert done.stderr.count("\n") == 1
    assert run_command([*command, "--help"]).returncode == Exit.DONE
