"""Tasks with habits of scripts: they wrap the model, join the group, or keep state beside the model."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from tests.unit.trainer.engine.wrong_tasks import Right


class ModelIsWrapped(Right):
    def model(self) -> Any:
        kind = nn.parallel.DistributedDataParallel if dist.is_initialized() else nn.DataParallel
        return nn.Sequential(kind(super().model()))


class ModelIsSharded(Right):
    def model(self) -> Any:
        return fully_shard(super().model())


class JoinsTheGroup(Right):
    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        dist.init_process_group("gloo")


class HasATeacher(Right):
    """Its teacher follows the model, as in mean teacher, BYOL and DINO."""

    def model(self) -> Any:
        self.student = super().model()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        return self.student

    @torch.no_grad()
    def loss(self, outputs: Tensor, targets: Tensor) -> Any:
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.lerp_(fast + 1, 0.1)
        with torch.enable_grad():
            return super().loss(outputs, targets)


class HasAQueue(Right):
    """It keeps the last outputs, as MoCo does."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.queue = torch.zeros(2, 2)

    def loss(self, outputs: Tensor, targets: Tensor) -> Any:
        self.queue[0] = outputs[0].detach() + self.queue[1]
        self.queue[1] += 1
        return super().loss(outputs, targets)


class HasAFrozenNetInTraining(Right):
    """Its running statistics change, as of a perceptual loss without eval()."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.judge = nn.BatchNorm1d(2).requires_grad_(False)

    def loss(self, outputs: Tensor, targets: Tensor) -> Any:
        return super().loss(outputs + 0 * self.judge(outputs), targets)
