"""Loss and metrics of the tasks that predict the next token at each position of a window."""

import math
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor


class NextToken:
    """Base class; the task adds `model` and `data`.

    Outputs are logits, shape (n, length, vocabulary), targets have the shape (n, length).
    """

    metric = "accuracy"
    of_mean: ClassVar = {"perplexity": math.exp}

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of each window, shape (n,), in nats per token."""
        losses = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(dim=1)

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
        """Return the share of each window's tokens that were predicted right, its nats, its tokens."""
        right = (outputs.argmax(dim=-1) == targets).float().mean(dim=1)
        length = targets.shape[1]
        tokens = right.new_full(right.shape, length)
        return {"accuracy": right, "perplexity": (self.loss(outputs, targets) * length, tokens)}
