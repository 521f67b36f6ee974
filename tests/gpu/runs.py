"""Runs on GPUs. If there are fewer GPUs than ranks, each rank is a separate node on the first GPU.

ended = end(begin(start, Case("ddp", 2)))
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from tests.conftest import ROOT, Ended, Started
from tests.ranks import free_port

GPUS = torch.cuda.device_count()


@dataclass(frozen=True)
class Case:
    """A mode on `ranks` GPUs; `settings` are those of the GPUs, `both` also those of the host.

    `tolerance`: how far its losses may be from the host's.
    """

    mode: str = "single"
    ranks: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    both: dict[str, str] = field(default_factory=dict)
    tolerance: float = 1e-3
    task: str = "digits"


def begin(start: Any, case: Case, *, nodes: str = "", **more: str) -> list[Started]:
    """Start twenty steps of `case`; `nodes`: PET_NNODES of an elastic job with one rank per node."""
    env = _variables(case) | {f"TRAINER_{name}": value for name, value in case.settings.items()}
    env |= {"TRAINER_MODE": case.mode} | more
    if case.ranks == 1:
        return [start("-m", "trainer", **env)]
    if case.ranks <= GPUS and not nodes:
        return [start("-m", "trainer.launch", PET_NPROC_PER_NODE=str(case.ranks), **env)]
    env |= {
        "PET_NNODES": nodes or str(case.ranks),
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
        "PET_LOCAL_ADDR": "127.0.0.1",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if nodes:
        env |= {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "gpus"}
        env["PET_RDZV_ENDPOINT"] = f"127.0.0.1:{env['PET_MASTER_PORT']}"
    # NCCL refuses two ranks on one GPU of one machine; it identifies machines by this name.
    return [
        start("-m", "trainer.launch", PET_NODE_RANK=str(number), NCCL_HOSTID=str(number), **env)
        for number in range(case.ranks)
    ]


def on_host(start: Any, case: Case, **more: str) -> Ended:
    """Train in one process on the host, in float32 unless `both` of the case says otherwise."""
    env = _variables(case) | {"TRAINER_MODE": "single", "CUDA_VISIBLE_DEVICES": ""} | more
    ended: Ended = start("-m", "trainer", **env).end(timeout=280)
    assert ended.code == 0, ended.stderr
    return ended


def end(running: list[Started], *, code: int = 0) -> Ended:
    """Wait until all nodes have ended with `code`, and return the result of rank 0's node."""
    endings = [one.end(timeout=280) for one in running]
    assert [ended.code for ended in endings] == [code] * len(endings), [e.stderr for e in endings]
    return endings[0]


def _variables(case: Case) -> dict[str, str]:
    wanted = {"TASK": case.task, "STEPS": "20", "LOG_STEPS": "1", "EVAL_STEPS": "10", "LOG": "json"}
    wanted |= {"CHECKPOINT_STEPS": "0", "WARMUP_STEPS": "4", "OUT": "run"}
    # AdamW divides a gradient by its own size, even if it is only a rounding error.
    wanted |= {"OPTIMIZER": "sgd", "LR": "0.03"} | case.both
    return {f"TRAINER_{name}": value for name, value in wanted.items()} | {"PYTHONPATH": str(ROOT)}
