"""Which settings decide a run's result: each is sorted, and each that does is compared."""

from pathlib import Path
from typing import Any

import pytest

from trainer.config.identity import (
    DECIDE,
    DECIDE_IN_MODE,
    DO_NOT_DECIDE,
    LENGTH,
    differences,
    identity,
)
from trainer.config.settings import Settings


def test_each_setting_is_in_one_group() -> None:
    in_modes = [name for names in DECIDE_IN_MODE.values() for name in names]
    assert sorted([*DECIDE, *in_modes, *LENGTH, *DO_NOT_DECIDE]) == sorted(Settings.model_fields)


@pytest.mark.parametrize(
    ("then", "now", "differ"),
    [
        ({}, {}, {}),
        ({"lr": 0.1}, {"lr": 0.2}, {"lr": (0.1, 0.2)}),
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
