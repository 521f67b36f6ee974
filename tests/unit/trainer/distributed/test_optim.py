"""The learning rate: how it grows with the global batch."""

import pytest

from trainer.config.settings import Settings
from trainer.distributed.optim import learning_rate, lr_reason, peak_rate


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
