"""SyncBatchNorm on a CPU, to compare modes where there is no GPU: torch's own runs on GPUs only.

run_ranks(2, folder, sync_batchnorm_on_cpu, sync_batchnorm="true", ...)
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm


def sync_batchnorm_on_cpu() -> None:
    """Have this rank's TRAINER_SYNC_BATCHNORM work on a CPU."""
    from trainer.engine import build

    build.synchronise = _synchronise  # type: ignore[assignment]


def _synchronise(model: nn.Module, group: dist.ProcessGroup, _: torch.device) -> nn.Module:
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = _OnCpu
            vars(module)["process_group"] = group
    return model


class _OnCpu(_BatchNorm):
    """BatchNorm over the samples of all ranks of `process_group`."""

    process_group: dist.ProcessGroup

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  # any number of dimensions
        pass

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch's name for it
        if not self.training:
            return super().forward(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        mean = _average(input.mean(axes), self.process_group)
        centred = input - mean.view(shape)
        # From the centred values: a mean of squares less a square of the mean would cancel.
        variance = _average(centred.square().mean(axes), self.process_group)
        self._keep(mean, variance, samples=input.numel() // input.shape[1])
        normed = centred * (variance + self.eps).rsqrt().view(shape)
        return normed if self.weight is None else self._scaled(normed, shape)

    def _scaled(self, normed: Tensor, shape: list[int]) -> Tensor:
        scaled = normed * self.weight.view(shape)
        return scaled if self.bias is None else scaled + self.bias.view(shape)

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor, *, samples: int) -> None:
        """Update the running statistics, the variance as an unbiased one, as BatchNorm does."""
        if (
            self.running_mean is None
            or self.running_var is None
            or self.num_batches_tracked is None
        ):
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        count = samples * dist.get_world_size(self.process_group)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = variance * (count / max(1, count - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def _average(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    averaged: Tensor = _Sum.apply(tensor, group) / dist.get_world_size(group)
    return averaged


class _Sum(torch.autograd.Function):
    """A sum over the ranks; backward sums the gradients of all ranks' losses."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        summed = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=context.group)
        return summed, None
