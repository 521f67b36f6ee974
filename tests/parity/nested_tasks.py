"""The synthetic task with samples of other structures: the model computes the same numbers."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainer.tasks import synthetic


class Halves(NamedTuple):
    left: Tensor
    right: Tensor


class _Joined(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, sample: dict[str, Any]) -> Tensor:
        halves = sample["vector"]
        vectors = torch.cat([halves.left, halves.right], dim=1)
        logits: Tensor = self.layers(vectors) * sample["mask"][:, None]
        return logits


class Targets(synthetic.Task):
    """Inputs are a tensor, as a pipeline needs; targets are nested."""

    def data(self, *, train: bool) -> Any:
        return _NestedTargets(super().data(train=train))

    def loss(self, outputs: Tensor, targets: Any) -> Tensor:
        return super().loss(outputs, targets["label"][0])

    def score(self, outputs: Tensor, targets: Any) -> Any:
        return super().score(outputs, targets["label"][0])


class Samples(Targets):
    """Samples are dicts, given whole to the model and to the loss."""

    def model(self) -> nn.Module:
        return _Joined(super().model())

    def data(self, *, train: bool) -> Any:
        return _Dicts(super().data(train=train))


class _NestedTargets:
    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
        inputs, targets = self._data.batch(indices)
        return inputs, {"label": [targets]}


class _Dicts:
    """Read one by one, as a torch Dataset."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        inputs, targets = self._data.batch(torch.tensor([index]))
        left, right = inputs[0].chunk(2)
        return {"vector": Halves(left, right), "mask": 1, "label": [targets["label"][0][0]]}


class _SumsRows(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows.sum(dim=1))


class Padded(synthetic.Task):
    """Samples have one to three rows; a batch has as many as its longest sample."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), _SumsRows(128, 10))

    def data(self, *, train: bool) -> Any:
        return _Rows(super().data(train=train))


class _Rows:
    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rows = self._data.inputs[index].expand(1 + index % 3, 64)
        return rows, self._data.targets[index]

    def collate(self, samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        rows, targets = zip(*samples, strict=True)
        return nn.utils.rnn.pad_sequence([*rows], batch_first=True), torch.stack(targets)
