"""A task that measures the processor time of the trainer's steps beside a bare loop's, in turn.

TRAINER_TASK=tests.unit.trainer.engine.step_cost:Task TRAINER_LOG_STEPS=100 python -m trainer
"""

import json
import time
from typing import Any

import torch
import torch.nn.functional as F

from trainer.config.settings import Settings
from trainer.tasks import digits

STEPS, BATCH = 100, 32


class Bare:
    """The same net, data, batch and optimiser in the fewest lines."""

    def __init__(self) -> None:
        data = digits.Task(Settings()).data(train=True)
        self.inputs, self.targets = data.inputs, data.targets
        self.net = digits.Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def take_steps(self) -> None:
        order = torch.arange(STEPS * BATCH) % len(self.inputs)
        for chosen in order.split(BATCH):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.net(self.inputs[chosen]), self.targets[chosen])
            loss.backward()
            self.optimizer.step()


class Task(digits.Task):
    """Digits. After every 100 steps of the trainer come as many of the bare loop, and both are timed."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._file = settings.run_folder / "pairs.json"
        self._pairs: list[tuple[float, float]] = []
        self._bare = Bare()
        self._since: float | None = None

    def on_event(self, event: dict[str, Any]) -> None:
        if event["event"] != "step" or event["step"] % STEPS:
            return
        # The thread's: what other threads do is no part of a step.
        now = time.thread_time()
        trained = None if self._since is None else now - self._since
        state = torch.get_rng_state()
        self._bare.take_steps()
        torch.set_rng_state(state)
        self._since = time.thread_time()
        if trained is not None:
            self._pairs.append((trained, self._since - now))
        self._file.write_text(json.dumps(self._pairs), encoding="utf-8")
