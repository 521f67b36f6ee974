"""Wrong arguments of a command: one line, and exit code 64."""

import sys

import pytest

from tests.conftest import run_command
from trainer.config.exits import Exit


@pytest.mark.parametrize("module", ["why", "runs", "report", "export", "check", "launch"])
def test_wrong_arguments_are_a_line_and_64(module: str) -> None:
    command = [sys.executable, "-m", f"trainer.{module}"]
    done = run_command([*command, "--bogus"])
    assert done.returncode == Exit.CONFIG
    assert done.stderr.startswith(f"{module}: ")
    assert done.stderr.endswith(f"; see python -m trainer.{module} --help (exit 64)\n")
    assert done.stderr.count("\n") == 1
    assert run_command([*command, "--help"]).returncode == Exit.DONE
