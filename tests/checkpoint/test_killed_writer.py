"""The writer is killed at random times, hundreds of times: the newest checkpoint is whole and recent.

Each round forks a process that saves step after step into the folder of the earlier rounds, and kills
it. Then the newest checkpoint is loaded: its state must be that of its step, bit by bit, and no step
whose save had ended may be lost. MUSTER_KILL_SEED seeds the rounds, MUSTER_KILL_ROUNDS counts them.
"""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoint.small import equal, found, loaded, save, trained
from trainer.checkpoint.retention import Keep

_SERVER = multiprocessing.get_context("forkserver")  # torch has threads in the tests' process
ROUNDS = int(os.environ.get("MUSTER_KILL_ROUNDS", "500"))
SEED = int(os.environ.get("MUSTER_KILL_SEED", "4"))


def fork_writers(folder: Path, done: Any, orders: Connection) -> None:
    """Fork a writer for each step in `orders`, kill it on request, and report that it is dead."""
    torch.set_num_threads(1)
    save(folder.with_name("warm"), 1)  # the imports of the first save are not part of the race
    orders.send("ready")
    while (start := orders.recv()) is not None:
        done.value = -1
        writer = os.fork()
        if writer == 0:
            done.value = start
            for step in range(start + 1, 1 << 62):
                save(folder, step, keep=Keep(2, every=50))
                done.value = step
        delay, patience = orders.recv(), time.monotonic() + 5
        while done.value < 0 and time.monotonic() < patience:  # a busy machine starts it late
            time.sleep(0.001)
        time.sleep(delay)
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        orders.send(os.WTERMSIG(status))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_resuming_succeeds_after_every_one_of_many_kills(tmp_path: Path) -> None:
    chance = random.Random(SEED)  # noqa: S311
    folder = tmp_path / "checkpoints"
    done = _SERVER.RawValue("q", 0)
    orders, theirs = _SERVER.Pipe()
    server = _SERVER.Process(target=fork_writers, args=(folder, done, theirs), daemon=True)
    server.start()
    assert orders.recv() == "ready"
    newest, partial = 0, 0
    for number in range(ROUNDS):
        orders.send(newest)
        orders.send(chance.uniform(0, 0.05))
        assert orders.recv() == signal.SIGKILL
        partial += any(folder.glob(".step-*"))
        checkpoint = found(folder)
        assert checkpoint is not None or done.value == 0
        if checkpoint is not None:
            newest = checkpoint.manifest.progress.step
            assert newest >= done.value, f"round {number}: a finished save is lost"
            assert equal(loaded(checkpoint), trained(newest)), f"round {number}"
        assert not any(folder.glob(".step-*")), "what the dead left is swept away"
    orders.send(None)
    server.join()
    print(f"{ROUNDS} kills, {partial} of them within a save, {newest} steps saved")
    assert partial > ROUNDS / 10, "the kills must come within a save to show anything"
