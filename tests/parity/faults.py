"""Faults that a comparison with one process must see; each is planted in every rank before it trains."""

import os
from typing import Any

import torch


def average_nothing() -> None:
    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel.require_backward_grad_sync = property(  # type: ignore[assignment]
        lambda _: False, lambda _, __: None
    )


def read_the_same_share() -> None:
    from trainer.engine import loop

    original = loop.training_shares
    loop.training_shares = lambda order, batches, _, *, start: original(  # type: ignore[assignment]
        order, batches, 0, start=start
    )


def clip_by_the_local_norm() -> None:
    from torch.nn.utils import get_total_norm

    from trainer import strategies
    from trainer.distributed.tensors import local_part

    strategies.global_norm = lambda gradients, *_, **__: get_total_norm(
        [local_part(gradient) for gradient in gradients]
    )


def report_the_local_norm() -> None:
    """Plant a norm that is wrong, while what is clipped is right."""
    from trainer.distributed.tensors import local_part
    from trainer.strategies import single

    original = single.clip

    def clip(parameters: Any, norm: float) -> torch.Tensor:
        gradients = [local_part(parameter.grad).clone() for parameter in parameters]
        original(parameters, norm)
        return torch.nn.utils.get_total_norm(gradients).float()

    single.clip = clip  # type: ignore[assignment]


def start_with_other_weights_on_rank_1() -> None:
    from trainer.engine import build as model

    def change(whole: Any, _: Any, **__: Any) -> None:
        for parameter in whole.parameters():
            parameter.data += 0.01 * (os.environ["RANK"] == "1")

    model._broadcast = change  # type: ignore[assignment]  # noqa: SLF001


def evaluate_a_sample_twice() -> None:
    from trainer.engine import evaluation

    original = evaluation.evaluation_shares

    def twice(*arguments: Any, **named: Any) -> Any:
        for samples in original(*arguments, **named):
            samples.indices[1] = samples.indices[0]
            yield samples

    evaluation.evaluation_shares = twice


def count_what_only_fills_the_shape() -> None:
    from trainer import strategies

    def all_of_them(outputs: Any, batch: Any, context: Any) -> Any:
        return context.loss(outputs, batch.targets).sum()

    strategies.summed_loss = all_of_them


def leave_the_last_update_out_on_rank_1() -> None:
    """Plant what no step's loss or norm can show."""
    steps: list[int] = []
    original = torch.optim.SGD.step

    def step(self: torch.optim.SGD, *arguments: Any) -> Any:
        steps.append(1)
        if len(steps) < 20 or os.environ["RANK"] == "0":
            return original(self, *arguments)
        return None

    torch.optim.SGD.step = step  # type: ignore[method-assign,assignment]


def clip_by_the_stages_own_norm() -> None:
    from trainer.strategies import pp

    original = pp.clip
    pp.clip = lambda parameters, norm, **_: original(parameters, norm)


def keep_each_replicas_gradients() -> None:
    from trainer.strategies import pp

    pp._sum_over_replicas = lambda *_: None  # noqa: SLF001


def count_what_all_have_many_times() -> None:
    """Plant a norm to which each rank adds the gradients that all have whole."""
    from trainer import strategies

    original = strategies.global_norm

    def twice(gradients: Any, group: Any, *, like: torch.Tensor) -> torch.Tensor:
        square = original(gradients, group, like=like).square()
        whole = [g.to_local() for g in gradients if g.placements[-1].is_replicate()]
        return (square + torch.nn.utils.get_total_norm(whole).square()).sqrt()

    strategies.global_norm = twice


def keep_the_parts_of_the_norms_gradients() -> None:
    from trainer.strategies import tp

    original = tp.sum_partial_gradients

    def local(parameters: Any) -> None:
        for parameter in parameters:
            grad = parameter.grad
            if any(placement.is_partial() for placement in grad.placements):
                part, mesh = grad.to_local(), grad.device_mesh
                parameter.grad = type(grad).from_local(part, mesh, parameter.placements)
        original(parameters)

    tp.sum_partial_gradients = local
