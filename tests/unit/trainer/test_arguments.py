"""How a tool ends: wrong arguments, a fault with control characters, Ctrl-C."""

import signal
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

import pytest

from tests.conftest import ROOT, clean_environment, run_command
from tests.unit.trainer.engine.wrong_tasks import Right
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


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("check", ["{name}:Task"]),
        ("engine.ledger", ["{name}"]),
        ("export", ["{name}", "-o", "model.safetensors"]),
        ("report.__main__", ["{name}"]),
        ("runs", ["{name}"]),
        ("why", ["{name}"]),
    ],
)
def test_a_fault_is_printed_without_control_characters(
    module: str,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [text.format(name="no\x1b]0;title\x07") for text in arguments]
    monkeypatch.setattr(sys, "argv", [module, *texts])
    assert import_module(f"trainer.{module}").main() in (Exit.CONFIG, Exit.DATA)
    error = capsys.readouterr().err
    assert "no\\x1b]0;title\\x07" in error
    assert error.count("\n") == 1


class Slow(Right):
    def data(self, *, train: bool) -> Any:
        time.sleep(60)
        return super().data(train=train)


def test_ctrl_c_ends_a_tool_with_130_and_no_traceback() -> None:
    command = [sys.executable, "-m", "trainer.check", f"{__name__}:Slow"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as tool:
        assert tool.stdout
        assert tool.stdout.readline().startswith("ok  ")
        tool.send_signal(signal.SIGINT)
        assert tool.communicate(timeout=30) == ("", "")
    assert tool.returncode == 130
