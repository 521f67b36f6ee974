"""A task that measures the processor time of the trainer's steps and of a bare loop's, in turn.

TRAINER_TASK=tests.unit.trainer.engine.step_cost:Task python -m trainer
"""

import json
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from trainer.config.settings import Settings
from trainer.tasks import digits

STEPS, BATCH = 20, 32


class Bare:
    """The same net, data, batch and optimiser in the fewest lines that clip and have a schedule."""

    def __init__(self, settings: Settings) -> None:
        data = digits.Task(settings).data(train=True)
        self.inputs, self.targets = data.inputs, data.targets
        self.net, self.clip = digits.Net(), settings.clip_norm
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.schedule = LambdaLR(self.optimizer, lambda step: 1 / (1 + step / 1e9))

    def take_steps(self) -> None:
        order = torch.arange(STEPS * BATCH) % len(self.inputs)
        for chosen in order.split(BATCH):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.net(self.inputs[chosen]), self.targets[chosen])
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
            self.optimizer.step()
            self.schedule.step()


class Task(digits.Task):
    """Digits. After every 20 steps of the trainer come 20 steps of the bare loop; both are timed."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._file = settings.run_folder / "pairs.json"
        self._pairs: list[tuple[float, float]] = []
        self._bare = Bare(settings)
        self._taken, self._since = 0, 0.0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if optimizer is self._bare.optimizer:
            return
        self._taken += 1
        if self._taken % STEPS:
            return
        # The thread's time, because other threads are not part of a step.
        now = time.thread_time()
        self._bare.take_steps()
        if self._since:
            self._pairs.append((now - self._since, time.thread_time() - now))
        self._since = time.thread_time()

    def on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "summary":
            self._file.write_text(json.dumps(self._pairs), encoding="utf-8")
