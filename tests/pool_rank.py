"""The rank's side of tests/pool.py: a process that carries out cases and forgets each.

serve(connection, errors)      # until the other end is closed
"""

import contextlib
import ctypes
import faulthandler
import gc
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainer.config.log import log_to_stderr


@dataclass(frozen=True)
class Case:
    """One run of the trainer: the TRAINER_* variables, and a function that every rank calls first."""

    variables: dict[str, str]
    before: Callable[[], None] | None = None
    rank: int = 0
    world_size: int = 1
    port: int = 0

    @property
    def layout(self) -> object:
        """What decides which process groups a run makes, and in which order."""
        names = ("TRAINER_TASK", "TRAINER_MODE", "TRAINER_MESH")
        return self.world_size, [self.variables.get(name) for name in names]


def serve(connection: Connection, errors: str) -> None:
    """Carry out cases until the other end is closed; `errors` is the file of standard error."""
    _redirect(errors)
    _end_with_parent()
    gc.freeze()  # objects from before the fork are never garbage; collecting skips them
    variables, path = dict(os.environ), list(sys.path)
    layout: object = None
    while True:
        try:
            case: Case = connection.recv()
        except EOFError:
            return
        _forget(variables, path)
        if case.layout != layout:
            _forget_meshes()
        layout = case.layout
        code = _run(case)
        gc.collect()  # a process group closes its connections when nothing refers to it any more
        connection.send(code)


def _end_with_parent() -> None:
    """Be killed when the fork server ends: a stopped process notices nothing else (prctl(2), Linux).

    The server ends when the last copy of the other end of its pipe is closed; every child has one.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    server: Any = forkserver._forkserver  # noqa: SLF001
    os.close(server._forkserver_alive_fd)  # noqa: SLF001
    server._forkserver_alive_fd = None  # noqa: SLF001


def _redirect(errors: str) -> None:
    with Path(errors).open("ab", buffering=0) as file, Path(os.devnull).open("wb") as nowhere:
        os.dup2(file.fileno(), 2)
        os.dup2(nowhere.fileno(), 1)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    log_to_stderr()
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, sys.stderr)


def _run(case: Case) -> int:
    from trainer.config.environment import from_environment
    from trainer.config.exits import Fault
    from trainer.distributed.runtime import as_fault
    from trainer.engine.loop import run

    if case.world_size > 1:  # as torch's agent sets them
        os.environ |= {
            "TORCHELASTIC_RUN_ID": "test",
            "RANK": str(case.rank),
            "LOCAL_RANK": str(case.rank),
            "WORLD_SIZE": str(case.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(case.port),
        }
    try:
        if case.before is not None:
            case.before()
        return int(run(from_environment(case.variables)))
    except Exception as error:  # noqa: BLE001  # the exit code stands for it
        if not isinstance(error, Fault):
            traceback.print_exc()
        fault = as_fault(error)
        print(fault, file=sys.stderr)
        return int(fault.code)


def _forget(variables: dict[str, str], path: list[str]) -> None:
    """Reset what a case may have changed in this process."""
    import numpy as np
    import torch

    os.environ.clear()
    os.environ |= variables
    sys.path[:] = path
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    torch.compiler.reset()


def _forget_meshes() -> None:
    """Clear DTensor's cache, whose results have the names of the process groups of their mesh.

    A name stands for the same ranks only while the groups are made in the same order. The cache is kept
    where that is so, which saves two of the three seconds of a case.
    """
    from trainer.distributed.torch_private import forget_shardings

    forget_shardings()
