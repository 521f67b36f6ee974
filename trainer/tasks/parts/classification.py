"""Loss and metric of the tasks that predict a class."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor


class Classification:
    """Base class; the task adds `model` and `data`. Outputs are logits, shape (n, classes)."""

    metric = "accuracy"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def score(self, outputs: Tensor, targets: Tensor) -> Any:  # a user's own task may add scores
        return (outputs.argmax(dim=1) == targets).float()
