"""A custom operator in a task: swish, x * sigmoid(beta * x), with a beta that is trained.

09-own-operator.yaml trains it. torch needs three things of an operator: what it computes (a compiled
kernel is called there), the shape of the result (to trace it without data), and its gradient.
"""

from typing import Any

import torch
from torch import Tensor, nn

from trainer.tasks import synthetic


@torch.library.custom_op("example::swish", mutates_args=())
def swish(inputs: Tensor, beta: Tensor) -> Tensor:
    """Return inputs * sigmoid(beta * inputs), of the shape of `inputs`; `beta` is a scalar."""
    return inputs * torch.sigmoid(beta * inputs)


@swish.register_fake
def _shape(inputs: Tensor, beta: Tensor) -> Tensor:  # noqa: ARG001
    return torch.empty_like(inputs)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    inputs, beta = ctx.saved_tensors
    gate = torch.sigmoid(beta * inputs)
    slope = inputs * gate * (1 - gate)
    return gradient * (gate + beta * slope), (gradient * inputs * slope).sum()


swish.register_autograd(_gradients, setup_context=_keep)


class Activation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = swish(inputs, self.beta)
        return out


class Swish(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 128), Activation(), nn.Linear(128, 128), Activation(), nn.Linear(128, 10)
        )
