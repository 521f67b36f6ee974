"""Loss and metric of the tasks that predict a class."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor


class Classification:
    """A base of such a task, which adds `model` and `data`: outputs are logits, shape (n, classes)."""

    metric = "accuracy"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def score(self, outputs: Tensor, targets: Tensor) -> Any:  # a task of one's own may add others
        return (outputs.argmax(dim=1) == targets).float()
