"""The synthetic task with models that are split over the axis tp, beside layers that are not."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn.utils.parametrizations import weight_norm

from trainer.models.tensor_plan import TensorPlan
from trainer.tasks import synthetic


class _Block(nn.Module):
    """Two split layers, and a weight of its own that is applied between them and the sum."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((64,), 0.5))
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
        self._activation = activation

    def forward(self, values: Tensor) -> Tensor:
        mixed: Tensor = self.scale * self.down(self._activation(self.up(values)))
        return values + mixed


class _Split(nn.Module):
    def __init__(self, plan: Callable[[], Any]) -> None:
        super().__init__()
        self._plan = plan
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
        return self._plan()


class Split(synthetic.Task):
    def model(self) -> nn.Module:
        return _Split(
            lambda: TensorPlan({"*.up": [ColwiseParallel()], "*.down": [RowwiseParallel()]})
        )


class Misnamed(synthetic.Task):
    def model(self) -> nn.Module:
        return _Split(
            lambda: TensorPlan({"*.up": [ColwiseParallel()], "*.out": [RowwiseParallel()]})
        )


class NoPlan(synthetic.Task):
    def model(self) -> nn.Module:
        return _Split(lambda: {"*.up": [ColwiseParallel()]})


class Raises(synthetic.Task):
    def model(self) -> nn.Module:
        return _Split(lambda: TensorPlan({}).styles["ups"])


class SplitsANormedLayer(synthetic.Task):
    def model(self) -> nn.Module:
        return _Split(lambda: TensorPlan({"head": [ColwiseParallel()]}))


class _Chained(nn.Sequential):
    """Stages may be split, too; between them are whole tensors, whatever `sequence_parallel` is."""

    def __init__(self, activation: Callable[[Tensor], Tensor], up: str = "*.up") -> None:
        super().__init__(_Block(activation), _Block(activation), nn.Linear(64, 10))
        self._up = up

    def chain(self) -> Any:
        return [((name,), piece) for name, piece in self.named_children()]

    def tensor_plan(self, **_: bool) -> Any:
        return TensorPlan({self._up: [ColwiseParallel()], "*.down": [RowwiseParallel()]})


class Chained(synthetic.Task):
    def model(self) -> nn.Module:
        return _Chained(torch.relu)


class ChainedMisnamed(synthetic.Task):
    def model(self) -> nn.Module:
        return _Chained(torch.relu, up="*.over")


class OnShares(synthetic.Task):
    """Divides by a norm between two split layers, where each rank has a share of the numbers."""

    def model(self) -> nn.Module:
        return _Chained(lambda values: 20 * nn.functional.normalize(values, dim=-1))
