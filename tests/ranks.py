"""Real ranks for the tests: processes with a gloo group, started from a server that has torch loaded.

Importing torch takes seconds; a fork server does it once for the whole test run.
"""

import json
import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
# torch._dynamo is what the first optimiser imports, in every rank anew otherwise
_CONTEXT.set_forkserver_preload(
    [
        "trainer.loop",
        "trainer.strategies.ddp_zero1",
        "trainer.strategies.hsdp",
        "trainer.tasks.digits",
        "torch._dynamo",
        "tests.ranks",
    ]
)


def start_server() -> None:
    """Start the fork server now, so that no one else does with less loaded."""
    forkserver.ensure_running()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(
    world_size: int,
    folder: Path,
    before: Callable[[], None] | None = None,
    *,
    code: int = 0,
    **settings: str,
) -> list[dict[str, Any]]:
    """Train with `world_size` ranks, expect them to end with `code`, and return the events.

    `before` runs in every rank first: the place to plant a fault. It must be a module's function.
    """
    port = free_port()
    ranks = [
        _CONTEXT.Process(target=_rank, args=(rank, world_size, port, folder, before, settings))
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=120)
    late = [number for number, rank in enumerate(ranks) if rank.is_alive()]
    for rank in ranks:
        rank.kill()
    assert not late, f"ranks {late} did not end"
    codes = [rank.exitcode for rank in ranks]
    assert codes == [code] * world_size, codes
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _rank(
    rank: int,
    world_size: int,
    port: int,
    folder: Path,
    before: Callable[[], None] | None,
    settings: dict[str, str],
) -> None:
    import torch

    from trainer.environment import from_environment
    from trainer.exits import Fault
    from trainer.loop import run

    torch.set_num_threads(1)
    if world_size > 1:
        os.environ |= {
            "TORCHELASTIC_RUN_ID": "test",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    try:
        if before is not None:
            before()
        variables = {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
        quiet = {"TRAINER_LOG": "json", "TRAINER_OUT": str(folder), "TRAINER_LOG_STEPS": "1"}
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        code = int(run(from_environment(quiet | variables)))
    except Fault as fault:
        code = int(fault.code)
    except Exception:  # noqa: BLE001  # what it was is told, and 70 is what a rank would say
        traceback.print_exc()
        code = 70
    sys.exit(code)


def weights(folder: Path) -> dict[str, Any]:
    """Return the model's tensors in the newest checkpoint of a run."""
    from trainer.checkpoint.find import complete
    from trainer.checkpoint.read import whole

    found = complete(str(max((folder / "checkpoints").glob("step-*"))))
    return {
        key.removeprefix("model."): whole(found, key)
        for key in found.manifest.tensors
        if key.startswith("model.")
    }
