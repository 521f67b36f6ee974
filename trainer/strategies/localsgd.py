"""Local SGD: each rank trains by itself, and every few steps the weights are averaged over all ranks.

Sends TRAINER_LOCAL_STEPS times less than ddp (Stich, 2019). With TRAINER_OUTER_LR the average is not the
new weights but a direction: the change of the weights over a period is the gradient of an outer SGD with
Nesterov momentum (DiLoCo, Douillard et al., 2023).

A period also ends when weights are saved or evaluated. So checkpoints hold the average, and a resumed
run gives the same result. Each rank clips by the norm of its own gradients; the reported norm is the
mean over the ranks.

    TRAINER_MODE=localsgd TRAINER_LOCAL_STEPS=16 torchrun --nproc-per-node 2 -m trainer
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.distributed.torch_private import divide_all, zero_all
from trainer.strategies import Context, Strategy, accumulate, single


def build(model: nn.Module, context: Context) -> Strategy:
    settings, group = context.settings, context.mesh.get_group("dp_replicate")
    strategy = single.build(model, context)
    outer = OuterOptimizer(model, settings) if settings.outer_lr else None
    replicas = context.runtime.sizing.batches.replicas
    period = Period(model, strategy.optimizer, outer, settings, group)
    strategy.optimizer.register_load_state_dict_post_hook(period.reset)

    def step(micro_batches: Sequence[Batch], weight: float) -> Tensor:
        period.count_step()
        # This rank's part of the global mean, times the number of ranks: the averaged update is ddp's.
        return accumulate(model, micro_batches, context, scale=replicas / weight)

    def clip_own(norm: float) -> Tensor:
        mean = strategy.clip(norm) / replicas
        # One number per step: every rank must know if the gradient of any rank is not finite.
        dist.all_reduce(mean, group=group)
        return mean

    extra = {"outer": outer} if outer else {}
    return replace(strategy, step=step, clip=clip_own, synchronize=period.end, extra=extra)


class OuterOptimizer:
    """SGD over periods: its gradient is the change of the weights since the start of the period."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self._weights = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._start = {n: nn.Parameter(p.detach().clone()) for n, p in self._weights.items()}
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
        """Copy the weights at the start of a period."""
        for name, weight in self._weights.items():
            self._start[name].copy_(weight)

    @torch.no_grad()
    def step(self) -> None:
        """Take an outer step from the model's weights, now the ranks' average, and replace them."""
        for name, weight in self._weights.items():
            self._start[name].grad = self._start[name] - weight
        self._optimizer.step()
        self._optimizer.zero_grad()
        for name, weight in self._weights.items():
            weight.copy_(self._start[name])

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._momentum)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, momentum in self._momentum.items():
            momentum.copy_(state[name])


@dataclass
class Period:
    """The steps since all ranks last had the same weights."""

    model: nn.Module
    optimizer: Optimizer
    outer: OuterOptimizer | None
    settings: Settings
    group: dist.ProcessGroup
    steps: int = 0

    def reset(self, _: Optimizer) -> None:
        """Start a period with the weights that were just loaded."""
        self.steps = 0

    def count_step(self) -> None:
        """Count a step that begins. If the period is complete, first average."""
        if self.steps == self.settings.local_steps:
            self.end()
        if self.steps == 0 and self.outer:
            self.outer.begin()
        self.steps += 1

    @torch.no_grad()
    def end(self) -> None:
        """Give all ranks the same weights and the same optimiser state."""
        if self.steps == 0:
            return
        trained = [one for one in self.model.parameters() if one.requires_grad]
        _average(chain(trained, self.model.buffers()), self.group)
        for one in self.model.parameters():
            if not one.requires_grad:  # a mean of equal numbers is not always that number
                dist.broadcast(one.detach(), group=self.group, group_src=0)
        if self.outer:
            self.outer.step()
        self._agree_on_state(trained)
        state = [item for part in self.optimizer.state.values() for item in part.items()]
        tensors = [(name, value) for name, value in state if isinstance(value, Tensor)]
        if self.settings.local_state == "average":
            # Not AdamW's step count: it is the same now, and NCCL cannot send it from the CPU.
            _average((value for name, value in tensors if name != "step"), self.group)
        else:
            zero_all([value for _, value in tensors])
        self.steps = 0

    def _agree_on_state(self, trained: Sequence[nn.Parameter]) -> None:
        """Let all ranks have the state of the same parameters, and the same counts of steps.

        A rank may not have used a parameter yet, such as an expert's. Then the others drop its state,
        which they could not average, and it begins again.
        """
        states = [self.optimizer.state.get(one) or {} for one in trained]
        counts = [(float(bool(state)), float(state.get("step", 0))) for state in states]
        table = torch.tensor(counts, dtype=torch.float64).to(trained[0].device)
        dist.all_reduce(table, group=self.group)
        if dist.get_backend(self.group) == "fake":  # a dry run's tensors have no values
            return
        means = (table / dist.get_world_size(self.group)).tolist()
        for one, state, (share, step) in zip(trained, states, means, strict=True):
            if share < 1:
                self.optimizer.state.pop(one, None)
            elif isinstance(state.get("step"), Tensor):
                state["step"].fill_(step)


def _average(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Replace tensors of real numbers by their mean over the ranks."""
    real = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in real]
    for work in works:
        work.wait()
    divide_all(real, dist.get_world_size(group))
