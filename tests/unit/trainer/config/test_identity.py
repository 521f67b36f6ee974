"""Which settings decide a run's result: all are compared, except those that are listed."""

from pathlib import Path
from typing import Any

import pytest

from trainer.config.identity import DECIDE_IN_MODE, DO_NOT_DECIDE, differences, identity
from trainer.config.settings import Settings


def test_what_does_not_decide_is_a_setting_and_decides_in_no_mode() -> None:
    in_modes = {name for names in DECIDE_IN_MODE.values() for name in names}
    assert DO_NOT_DECIDE | in_modes <= Settings.model_fields.keys()
    assert not DO_NOT_DECIDE & in_modes


@pytest.mark.parametrize(
    ("then", "now", "differ"),
    [
        ({}, {}, {}),
        ({"lr": 0.1}, {"lr": 0.2}, {"lr": (0.1, 0.2)}),
        ({"clip_norm": 1.0}, {"clip_norm": 2.0}, {"clip_norm": (1.0, 2.0)}),
        ({"data": Path("a")}, {"data": Path("b")}, {"data": ("a", "b")}),
        ({"mode": "ddp"}, {"mode": "fsdp", "mesh": "dp_shard=2", "stages": 3}, {}),
        ({"mode": "ddp"}, {"mode": "auto", "local_steps": 3}, {}),
        ({"mode": "localsgd"}, {"mode": "localsgd", "local_steps": 3}, {"local_steps": (8, 3)}),
        (
            {"mode": "localsgd"},
            {"mode": "ddp"},
            {"mode": ("localsgd", "any that equals one process")},
        ),
        ({"epochs": 1}, {"epochs": 2, "steps": 7}, {}),
    ],
)
def test_differences(then: Any, now: Any, differ: Any) -> None:
    found = differences(saved=identity(Settings(**then)), now=identity(Settings(**now)))
    assert found == differ


def test_a_setting_that_an_older_checkpoint_lacks_is_not_compared() -> None:
    saved = identity(Settings())
    del saved["bptt"]
    assert differences(saved=saved, now=identity(Settings(bptt=3))) == {}
