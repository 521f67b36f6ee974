"""The loss of a micro-batch: each sample counts by its weight, and padding does not count."""

from types import SimpleNamespace
from typing import Any

import torch

from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.strategies import weighted_loss


def test_a_sample_counts_by_its_weight_and_padding_does_not() -> None:
    outputs = torch.tensor([1.0, 10.0, float("inf")])
    batch = Batch(outputs, torch.zeros(3), torch.tensor([3.0, 0.5, 0.0]))
    context: Any = SimpleNamespace(loss=lambda outputs, _: outputs, settings=Settings())
    assert weighted_loss(outputs, batch, context).item() == 3 * 1 + 0.5 * 10
