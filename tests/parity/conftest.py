"""The runs in one process that others are compared with, each made once for all workers of pytest."""

import fcntl
import json
import os
from collections.abc import Callable

import pytest

from tests.parity.compare import Run
from tests.parity.table import reference
from tests.ranks import run_ranks

Single = Callable[[str, str, str], Run]


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Single:
    """Return a function that returns the run of a task, optimiser and precision, made once."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # the workers' own folders stand side by side in it

    def run(task: str, optimizer: str, precision: str) -> Run:
        folder = root / f"parity-{task}-{optimizer}-{precision}"
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = folder / "done"
            if not done.exists():
                run_ranks(1, folder, **reference(task, optimizer, precision))
                done.touch()
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return folder, [json.loads(line) for line in lines]

    return run
