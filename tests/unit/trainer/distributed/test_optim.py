"""The learning rate, how it grows with the global batch, and the optimiser of a GPU."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.optim import SGD

from trainer.config.exits import Fault
from trainer.config.settings import Settings
from trainer.distributed.optim import (
    NOTHING,
    build,
    check_state,
    learning_rate,
    lr_reason,
    options_of,
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


class Around(torch.optim.Optimizer):
    """It calls another optimiser, which is in a list in a dict."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = {"all": [inner]}

    def step(self, closure: Any = None) -> Any:
        return self.inner["all"][0].step(closure)


class Sharing(Around):
    """Its state is the inner one's, as that of torch's PostLocalSGDOptimizer."""

    state = property(lambda self: self.inner["all"][0].state, lambda *_: None)


class Copying(Around):
    """It has the inner one's state in its own."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for parameter, values in self.inner["all"][0].state.items():
            self.state[parameter] = {"inner": values}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", [Around, Sharing, Copying])
def test_an_optimiser_inside_another_may_have_no_state_of_its_own(
    kind: Any, momentum: float
) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = kind(SGD([parameter], lr=0.1, momentum=momentum))
    optimizer.itself = optimizer
    options = options_of(optimizer)
    update(optimizer, [1.0])
    if kind is Around and momentum:
        with pytest.raises(
            Fault, match="Around that holds a SGD, whose state 'momentum_buffer' is not"
        ):
            check_state(optimizer, options, Settings())
    else:
        check_state(optimizer, options, Settings())


def update(optimizer: SGD, gradients: Sequence[float | None]) -> None:
    for parameter, value in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        parameter.grad = None if value is None else torch.full_like(parameter, value)
    optimizer.step()


def test_a_fused_sgd_with_dampening_begins_as_torch_has_it() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.ones(3))], momentum=0.9, dampening=0.5, fused=True)
    zero_momentum(optimizer)
    assert not optimizer.state
