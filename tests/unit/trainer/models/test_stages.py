"""Cutting a model: measured costs, stages with the same names and outputs, and refusals."""

import contextlib

import pytest
import torch
from torch import Tensor, nn

from trainer import tasks
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.distributed.runtime import as_fault
from trainer.models import chain, stages


def test_the_measured_cost_of_a_linear_layer_is_the_known_one() -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False))
    costs, between = stages.measure(model, torch.zeros(5, 8))
    assert [cost.flops for cost in costs] == [2 * 5 * 8 * 16, 2 * 5 * 16 * 4]
    assert [cost.parameters for cost in costs] == [4 * 8 * 16, 4 * 16 * 4]
    assert [cost.activations for cost in costs] == [4 * 5 * 8, 4 * 5 * 16]  # its input
    assert [tuple(tensor.shape) for tensor in between] == [(5, 8), (5, 16), (5, 4)]
    assert all(tensor.device.type == "meta" for tensor in between)


@pytest.mark.parametrize("name", ["digits", "charlm-lstm", "charlm-gpt", "synthetic"])
def test_stages_together_are_the_model_under_its_own_names(name: str) -> None:
    task = tasks.load(Settings(task=name))
    torch.manual_seed(0)
    model = task.model()
    inputs, _ = task.data(train=True).batch(torch.arange(4))
    expected = model(inputs)
    names = set(model.state_dict())
    plan = stages.cut(model, inputs, 2)
    parts = [
        stages.Stage(model, plan.pieces_of(number), precision=contextlib.nullcontext)
        for number in range(2)
    ]
    first, second = (set(part.state_dict()) for part in parts)
    assert first | second == names
    assert not first & second
    border = parts[0](inputs)
    assert (border.shape, border.dtype) == (plan.borders[1].shape, plan.borders[1].dtype)
    assert torch.equal(parts[1](border), expected)
    rows = plan.describe()
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=1e-3)
    assert sum(row["parameter_bytes"] for row in rows) == sum(p.nbytes for p in model.parameters())


@pytest.mark.slow
def test_a_resnet_stage_runs_when_the_rest_of_the_model_is_gone() -> None:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    model = resnet18(num_classes=10).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    plan = stages.cut(model, images, 3)
    precision = contextlib.nullcontext
    x = images
    for number in range(3):
        x = stages.Stage(model, plan.pieces_of(number), precision=precision)(x)
    assert torch.equal(x, expected)
    last = stages.Stage(model, plan.pieces_of(2), precision=precision)
    stages.keep_pieces(model, plan.pieces_of(2), plan.pieces)
    assert set(model.state_dict()) == set(last.state_dict())
    assert "fc.weight" in model.state_dict()
    assert last(torch.zeros_like(plan.borders[2], device="cpu")).shape == (2, 10)


class Chained(nn.Module):
    """Counts its passes; its chain may have an activation more."""

    def __init__(self, *, alike: bool = False, random: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.alike, self.random, self.passes = alike, random, 0

    def chain(self) -> chain.Chain:
        first = self.first if self.alike else lambda x: self.first(x).relu()
        return [(("first",), first), (("second",), self._end)]

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self._end(self.first(x))

    def _end(self, x: Tensor) -> Tensor:
        scores: Tensor = self.second(nn.functional.dropout(x, training=self.random))
        return scores


def test_a_chain_that_is_not_the_forward_pass_is_refused() -> None:
    model, state = Chained(alike=True), torch.get_rng_state()
    stages.cut(model, torch.ones(3, 4), 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert (model.passes, model.training) == (0, True)
    wrong = r"model Chained: its chain\(\) gives other outputs than forward\(\) for the same inputs"
    with pytest.raises(Fault, match=wrong) as caught:
        stages.cut(Chained(), torch.ones(3, 4), 2)
    assert caught.value.code == Exit.CONFIG
    stages.cut(Chained(random=True), torch.ones(3, 4), 2)  # cannot be compared


def test_too_few_pieces_are_refused_by_name() -> None:
    model = tasks.load(Settings(task="digits")).model()
    with pytest.raises(Fault) as caught:
        stages.cut(model, torch.zeros(2, 1, 28, 28), 5)
    assert caught.value.code == Exit.CONFIG
    assert "its 4 pieces (conv1, conv2, fc1, fc2) cannot make 5 stages; at most 4" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("cause", "code", "words"),
    [
        (Fault(Exit.DATA, "no such file"), Exit.DATA, "no such file"),
        (RuntimeError("[a.cc:1] Connection closed by peer [::1]:2"), Exit.PEER, "lost a peer: "),
        (
            torch.AcceleratorError("CUDA error: device-side assert triggered\nmore"),
            Exit.CODE,
            "AcceleratorError: CUDA error: device-side assert triggered: an index outside its range",
        ),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error"), Exit.MACHINE, "Accel"),
        (ZeroDivisionError("by 0"), Exit.CODE, "ZeroDivisionError: by 0"),
    ],
)
def test_what_a_schedule_wraps_keeps_its_code(cause: Exception, code: Exit, words: str) -> None:
    error = RuntimeError("\n  [Stage 0] failed to run forward:\n")
    error.__cause__ = cause
    fault = as_fault(error)
    assert fault.code == code
    assert str(fault).startswith(words)
