"""A process ends with its exit code, in time, even if its report or a process group fails."""

import signal
import sys
from pathlib import Path

import pytest

from tests.conftest import run_command
from trainer.config.ending import report_fault
from trainer.config.exits import Exit, Fault


def test_an_unwritable_error_file_does_not_change_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "missing" / "error.json"))
    assert report_fault(Fault(Exit.DATA, "no data"), None) == Exit.DATA


_WITH_GROUP = """
import atexit, time
import torch.distributed as dist
from trainer.config.ending import exit_process

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
atexit.register(time.sleep, 3600)
exit_process(70)
"""


@pytest.mark.slow
def test_a_process_group_does_not_delay_the_end() -> None:
    ended = run_command([sys.executable, "-c", _WITH_GROUP], timeout=60)
    assert ended.returncode == 70


_IN_ORDER = """
import atexit, sys, threading, time
import torch
from trainer.config.ending import exit_process

atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.5), print("a thread"))).start()
print("unflushed", end="; ")
exit_process(72)
"""


@pytest.mark.slow
def test_threads_exit_functions_and_output_are_waited_for() -> None:
    ended = run_command([sys.executable, "-c", _IN_ORDER], timeout=60)
    assert (ended.returncode, ended.stderr) == (72, "")
    assert ended.stdout == "unflushed; a thread\nat exit\n"


_HELD = """
import os, sys
import torch
from trainer.config.ending import exit_process, report_fault
from trainer.config.exits import Exit, Fault

class Tensor:
    def __del__(self):
        os.abort()

def step():
    loss = Tensor()
    raise ValueError

def train():
    try:
        step()
    except ValueError as error:
        return report_fault(Fault(Exit.CODE, "wrong"), error)

torch.accelerator.is_available = lambda: sys.argv[1] == "gpu"
exit_process(train())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("device", "code"), [("gpu", 70), ("cpu", -signal.SIGABRT)])
def test_what_failed_code_holds_is_freed_on_a_cpu_only(device: str, code: int) -> None:
    """With a GPU it is not freed, because torch aborts when it frees a tensor of a failed GPU."""
    ended = run_command([sys.executable, "-c", _HELD, device], timeout=60)
    assert ended.returncode == code, ended.stderr
