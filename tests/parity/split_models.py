"""The synthetic task with models that are split over the axis tp, beside layers that are not."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn.utils.parametrizations import weight_norm

from trainer.models.tensor_plan import TensorPlan
from trainer.tasks import synthetic


class _Block(nn.Module):
    """Two split layers, and a weight of its own that is applied between them and the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((64,), 0.5))
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, values: Tensor) -> Tensor:
        mixed: Tensor = self.scale * self.down(self.up(values).relu())
        return values + mixed


class _Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.full((64,), 0.1))
        self.blocks = nn.ModuleList(_Block() for _ in range(2))
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.memory = nn.LSTM(64, 64, batch_first=True)
        self.head = weight_norm(nn.Linear(64, 10))

    def forward(self, values: Tensor) -> Tensor:
        values = values + self.place
        for block in self.blocks:
            values = block(values)
        row = values[:, None]
        row = row + self.attention(row, row, row, need_weights=False)[0]
        logits: Tensor = self.head(self.memory(row)[0][:, 0])
        return logits

    def tensor_plan(self, **_: bool) -> Any:
        return TensorPlan({"*.up": [ColwiseParallel()], "*.down": [RowwiseParallel()]})


class Split(synthetic.Task):
    def model(self) -> nn.Module:
        return _Split()


class _Misnamed(_Split):
    def tensor_plan(self, **_: bool) -> Any:
        return TensorPlan({"*.up": [ColwiseParallel()], "*.out": [RowwiseParallel()]})


class Misnamed(synthetic.Task):
    def model(self) -> nn.Module:
        return _Misnamed()


class _Plain(_Split):
    def tensor_plan(self, **_: bool) -> Any:
        return {"*.up": [ColwiseParallel()]}


class NoPlan(synthetic.Task):
    def model(self) -> nn.Module:
        return _Plain()


class _Raises(_Split):
    def tensor_plan(self, **_: bool) -> Any:
        raise KeyError("ups")


class Raises(synthetic.Task):
    def model(self) -> nn.Module:
        return _Raises()


class _Normed(_Split):
    def tensor_plan(self, **_: bool) -> Any:
        return TensorPlan({"head": [ColwiseParallel()]})


class CannotBeSplit(synthetic.Task):
    def model(self) -> nn.Module:
        return _Normed()


class _OnShares(nn.Module):
    """Computes a softmax between two split layers, where each rank has a share of the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, values: Tensor) -> Tensor:
        logits: Tensor = self.down(self.up(values).softmax(-1))
        return logits

    def tensor_plan(self, **_: bool) -> Any:
        return TensorPlan({"up": [ColwiseParallel()], "down": [RowwiseParallel()]})


class OnShares(synthetic.Task):
    def model(self) -> nn.Module:
        return _OnShares()
