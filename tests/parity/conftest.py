"""Runs that others are compared with, each made once for all workers of pytest."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable

import pytest

from tests.parity.compare import Run
from tests.ranks import run_ranks

Once = Callable[..., Run]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Return a function that trains as `run_ranks` does, once with the same settings."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # the workers' own folders stand side by side in it

    def run(ranks: int = 1, **settings: str) -> Run:
        key = repr((ranks, sorted(settings.items())))
        folder = root / f"once-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = folder / "done"
            if not done.exists():
                run_ranks(ranks, folder, **settings)
                done.touch()
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return folder, [json.loads(line) for line in lines]

    return run
