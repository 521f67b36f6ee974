"""A loss or score of a sample that depends on the others of its micro-batch is warned about."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.pool import carry_out, lend
from tests.pool_rank import Case
from tests.unit.trainer.engine.test_same_data import Seeded
from trainer.tasks import synthetic


class MeanLoss(synthetic.Task):
    def loss(self, outputs: Tensor, targets: Tensor) -> Any:
        return nn.functional.cross_entropy(outputs, targets).expand(len(targets))


class MeanLossOfRandomSamples(MeanLoss, Seeded):
    """Each read of a sample draws random numbers."""


class MeanScore(synthetic.Task):
    def score(self, outputs: Tensor, targets: Tensor) -> Any:
        return super().score(outputs, targets).mean().expand(len(targets))


class _Centred(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        return outputs - outputs.mean(0)


class Centred(synthetic.Task):
    def model(self) -> Any:
        return _Centred(64, 10)


class Alone(Seeded):
    """Its samples and loss are random, and its BatchNorm mixes samples only in training."""

    def model(self) -> Any:
        return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.Linear(32, 10))

    def loss(self, outputs: Tensor, targets: Tensor) -> Any:
        return super().loss(outputs + torch.randn_like(outputs), targets)


@pytest.mark.parametrize(
    ("task", "mode", "micro", "method"),
    [
        ("MeanLoss", "single", 8, "loss()"),
        ("MeanLoss", "pp", 8, "loss()"),
        ("MeanLossOfRandomSamples", "single", 8, "loss()"),
        ("MeanScore", "ddp", 8, "score(), accuracy,"),
        ("Centred", "single", 8, "loss()"),
        ("Alone", "ddp", 8, ""),
        ("MeanLoss", "single", 1, ""),
    ],
)
def test_a_sample_that_depends_on_others(
    task: str, mode: str, micro: int, method: str, tmp_path: Path
) -> None:
    """Its padding would count, and figures would differ with the number of ranks."""
    ranks = 1 if mode == "single" else 2
    settings = {
        "TRAINER_TASK": f"{__name__}:{task}",
        "TRAINER_MODE": mode,
        "TRAINER_MICRO_BATCH": str(micro),
        "TRAINER_STEPS": "1",
        "TRAINER_OUT": str(tmp_path),
    }
    with lend(ranks) as lent:
        endings = carry_out(Case(settings), lent, timeout=60)
    assert [ending.code for ending in endings] == [0] * ranks, endings[0].stderr
    said = "".join(ending.stderr for ending in endings)
    assert said.count("beside copies of it") == bool(method)
    assert f"task {__name__}:{task}: {method} of the first sample is" in said or not method
