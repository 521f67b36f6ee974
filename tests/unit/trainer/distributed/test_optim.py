"""The learning rate, how it grows with the global batch, and the optimiser of a GPU."""

from collections.abc import Sequence

import pytest
import torch
from torch.optim import SGD

from trainer.config.settings import Settings
from trainer.distributed.optim import (
    NOTHING,
    build,
    learning_rate,
    lr_reason,
    peak_rate,
    skip_where,
    zero_momentum,
)


@pytest.mark.parametrize(
    ("scale", "peak", "reason"),
    [
        ("none", 0.1, "as set"),
        ("linear", 0.4, "0.1 x 128/32 samples per step"),
        ("sqrt", 0.2, "0.1 x sqrt 128/32 samples per step"),
    ],
)
def test_the_rate_grows_with_the_batch(scale: str, peak: float, reason: str) -> None:
    settings = Settings(lr=0.1, lr_scale=scale, global_batch=128, warmup_steps=10)
    assert peak_rate(settings) == pytest.approx(peak)
    assert learning_rate(9, 100, settings) == pytest.approx(peak)
    assert lr_reason(settings) == reason


def test_the_fused_sgd_updates_as_the_other_and_can_skip_its_first_step() -> None:
    """Also a parameter that gets its first gradient later, with which torch's own start fails."""
    optimizers = []
    for fused in (False, True):
        parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        optimizers.append(SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1, fused=fused))
    usual, fused_one = optimizers
    zero_momentum(fused_one)
    skip_where(fused_one, torch.tensor(True))
    update(fused_one, [torch.nan, None])
    skip_where(fused_one, torch.tensor(False))
    for gradients in ([1.0, None], [2.0, 3.0], [4.0, 5.0]):
        update(usual, gradients)
        update(fused_one, gradients)
    for one, other in zip(*(o.param_groups[0]["params"] for o in optimizers), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("optimizer", "is_fused"), [("sgd", True), ("adamw", None)])
def test_sgd_is_the_fused_one_on_a_cpu_too(optimizer: str, is_fused: object) -> None:
    built = build(torch.nn.Linear(2, 2), Settings(optimizer=optimizer), NOTHING)
    assert built.param_groups[0]["fused"] is is_fused


def update(optimizer: SGD, gradients: Sequence[float | None]) -> None:
    for parameter, value in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        parameter.grad = None if value is None else torch.full_like(parameter, value)
    optimizer.step()


def test_a_fused_sgd_with_dampening_begins_as_torch_has_it() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.ones(3))], momentum=0.9, dampening=0.5, fused=True)
    zero_momentum(optimizer)
    assert not optimizer.state
