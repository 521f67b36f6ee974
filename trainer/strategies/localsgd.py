"""Local SGD: each rank trains by itself, and every few steps all take the average of their weights.

Sends TRAINER_LOCAL_STEPS times less than ddp (Stich, 2019). With TRAINER_OUTER_LR the average is not
taken as it is: what the weights moved by is the gradient of an outer SGD with Nesterov momentum
(DiLoCo, Douillard et al., 2023).

A period also ends where weights are saved or evaluated, so that what is saved is the average, and a
resumed run goes on as the saved one did. Gradients are clipped by each rank's own norm; the norm
reported is the ranks' mean.

    TRAINER_MODE=localsgd TRAINER_LOCAL_STEPS=16 torchrun --nproc-per-node 2 -m trainer
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.distributed import optim
from trainer.strategies import Context, Strategy, accumulate, clip, inference, single


def build(model: nn.Module, context: Context) -> Strategy:
    mesh = context.runtime.mesh
    if mesh is None:  # a world of one has nobody to average with
        return single.build(model, context)
    group, settings = mesh.get_group("dp_replicate"), context.settings
    parameters = list(model.parameters())
    optimizer = optim.build(parameters, settings)
    outer = Outer(model, settings) if settings.outer_lr else None
    replicas = context.runtime.sizing.batches.replicas
    period = Period(model, optimizer, outer, settings, group=group)

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        period.take_step()
        # Each rank's part of the global mean, times the ranks: the average of the updates is ddp's.
        return accumulate(model, micro_batches, context, scale=replicas / weight)

    def clip_own(norm: float) -> Tensor:
        mean = clip(parameters, norm) / replicas
        # One number a step. All ranks have to know of one that has no finite gradient.
        dist.all_reduce(mean, group=group)
        return mean

    return Strategy(
        module=model,
        optimizer=optimizer,
        step=step,
        clip=clip_own,
        forward=inference(model, context),
        settle=period.end,
        extra={"outer": outer} if outer else {},
    )


class Outer:
    """The outer optimiser: moves the weights all ranks began a period with, by what came of it."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self._model = model
        self._start = {name: nn.Parameter(p.detach().clone()) for name, p in _weights(model)}
        self._optimizer = SGD(
            self._start.values(),
            lr=settings.outer_lr or 0.0,
            momentum=settings.outer_momentum,
            nesterov=settings.outer_momentum > 0,
        )
        self._momentum = {name: torch.zeros_like(start) for name, start in self._start.items()}
        for name, start in self._start.items():
            self._optimizer.state[start]["momentum_buffer"] = self._momentum[name]

    @torch.no_grad()
    def begin(self) -> None:
        """Note the weights that a period begins with."""
        for name, weight in _weights(self._model):
            self._start[name].copy_(weight)

    @torch.no_grad()
    def step(self) -> None:
        """Take the model's weights, by now the average, as a direction, and give it the new ones."""
        for name, weight in _weights(self._model):
            self._start[name].grad = self._start[name] - weight
        self._optimizer.step()
        self._optimizer.zero_grad()
        for name, weight in _weights(self._model):
            weight.copy_(self._start[name])

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._momentum)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, momentum in self._momentum.items():
            momentum.copy_(state[name])


class Period:
    """The steps since the ranks last agreed."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        outer: Outer | None,
        settings: Settings,
        *,
        group: dist.ProcessGroup,
    ) -> None:
        self._model, self._optimizer, self._outer = model, optimizer, outer
        self._settings, self._group = settings, group
        self._steps = 0
        optimizer.register_load_state_dict_post_hook(lambda _: self._begin_anew())

    def _begin_anew(self) -> None:
        """Forget the steps since, whose weights a checkpoint's have replaced."""
        self._steps = 0

    def take_step(self) -> None:
        """Count a step; when the period is over, the next one begins with the average."""
        if self._steps == self._settings.local_steps:
            self.end()
        if self._steps == 0 and self._outer:
            self._outer.begin()
        self._steps += 1

    @torch.no_grad()
    def end(self) -> None:
        """Let all ranks have the same weights and the same state of the optimiser."""
        if self._steps == 0:
            return
        _average(chain(self._model.parameters(), self._model.buffers()), self._group)
        if self._outer:
            self._outer.step()
        state = [item for part in self._optimizer.state.values() for item in part.items()]
        tensors = [(name, value) for name, value in state if isinstance(value, Tensor)]
        if self._settings.local_state == "average":
            # Not AdamW's count of steps: all ranks have the same, on the CPU, where NCCL sends nothing.
            _average((value for name, value in tensors if name != "step"), self._group)
        else:
            torch._foreach_zero_([value for _, value in tensors])
        self._steps = 0


def _average(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Replace tensors of real numbers by their mean over the ranks."""
    real = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in real]
    for work in works:
        if work is not None:
            work.wait()
    torch._foreach_div_(real, dist.get_world_size(group))


def _weights(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return model.named_parameters()
