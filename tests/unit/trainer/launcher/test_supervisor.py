"""How a supervisor sees a rank that ends between two checks."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import clean_environment
from tests.ranks import free_port
from trainer.config.contract import resolve
from trainer.config.exits import Exit
from trainer.launcher.program.options import Options
from trainer.launcher.ranks import Process, Program, start_command
from trainer.launcher.supervisor import Supervisor
from trainer.rendezvous.meeting import Meeting

CODE = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


class EndsAtLook:
    """A killed process; checks before the given one say that it runs."""

    def __init__(self, process: Any, look: int) -> None:
        self._process, self._looks_left = process, look - 1
        self.pid = process.pid

    def poll(self) -> int | None:
        code: int = self._process.wait()
        self._looks_left -= 1
        return None if self._looks_left >= 0 else code


@pytest.mark.parametrize("look", range(1, 7))
def test_a_rank_that_is_killed_at_any_moment_is_no_success(
    look: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", clean_environment())

    def start(environment: Mapping[str, str], *, stdout: int, stderr: int) -> Process:
        command = (sys.executable, "-c", CODE)
        return EndsAtLook(start_command(command, environment, stdout=stdout, stderr=stderr), look)

    environment = {"PET_NPROC_PER_NODE": "1", "PET_MASTER_PORT": str(free_port())}
    contract = resolve(environment, devices=lambda: 0)
    options = Options(run_folder=str(tmp_path))
    program = Program(start, lambda *_: {}, is_trainer=False, open_store=None)
    meeting = Meeting(contract, options.rules(contract), secret="")
    assert Supervisor(contract, options, meeting, program=program).run() == Exit.CODE
