"""A task that records the run's time by itself, in a file that remains after its process.

TRAINER_TASK=tests.report.timed:Task TIMED=/tmp/account.jsonl python -m trainer

Rank 0 notes what it does. TIMED_SLOW=rank makes rank 1 slow for some steps, and it notes by how much.
With TIMED_SLOW=disk, each file takes some time to reach the disk of rank 0.
"""

import json
import os
import time
from typing import Any

import torch
from torch import Tensor, nn

from trainer.tasks import synthetic

STEP, EVALUATION, SAVE, SAMPLE = 0.2, 0.1, 0.3, 0.001  # seconds of a batch, of a save, of a sample
SLOWER = 0.4  # additional seconds per step, on the slow rank
SLOW_STEPS = range(10, 40)  # of a process
DISK = 1.0  # seconds of a file, on a slow disk
_TRIED = 2  # samples on which a task is tried before the first step
_RANK = os.environ.get("RANK", "0")
_SLOW = os.environ.get("TIMED_SLOW")


def note(kind: str, seconds: float) -> None:
    """Wait, and record the time."""
    began = time.time()
    time.sleep(seconds)
    if _RANK != "0" and kind != "stragglers":
        return
    line = json.dumps({"kind": kind, "began": began, "ended": time.time()})
    file = os.open(os.environ["TIMED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def _slow_fsync(fd: Any) -> None:
    time.sleep(DISK)
    os.fdatasync(fd)


class _Samples:
    """Samples that take a while."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def __len__(self) -> int:
        return len(self._whole.inputs)

    def __getitem__(self, index: int) -> Any:
        note("data", SAMPLE)
        return self._whole.inputs[index], self._whole.targets[index]


class Task(synthetic.Task):
    """Steps, evaluations, saves and samples of known length."""

    _steps = 0

    def model(self) -> nn.Module:
        model = super().model()
        model.register_state_dict_post_hook(lambda *_: note("checkpoint", SAVE))
        if _SLOW == "disk" and _RANK == "0":
            os.fsync = _slow_fsync
        return model

    def data(self, *, train: bool) -> Any:
        whole = super().data(train=train)
        return _Samples(whole) if train else whole

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) > _TRIED:
            training = torch.is_grad_enabled()
            note("training" if training else "evaluation", STEP if training else EVALUATION)
            self._steps += training
            if training and _SLOW == "rank" and _RANK == "1" and self._steps in SLOW_STEPS:
                note("stragglers", SLOWER)
        return super().loss(outputs, targets)
