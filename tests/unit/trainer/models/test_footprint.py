"""The bytes that a dry run counts: the peak of the sum of all live storages, fast for many blocks."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trainer.config.settings import Settings
from trainer.models.footprint import Footprint
from trainer.plan.sizing import size
from trainer.tools import fake_step


class Checked(Footprint):
    """Sums all storages after each operator: `whole` is the largest sum; counts reads of storages."""

    made: "Checked"

    def __init__(self) -> None:
        Checked.made = self
        self.looks = self.whole = 0
        super().__init__()

    def reset(self) -> None:
        super().reset()
        self.whole = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        storages = [reference() for reference in self._live.values()]
        self.whole = max(self.whole, sum(one.nbytes() for one in storages if one is not None))
        return out

    def _count(self, key: int, storage: torch.UntypedStorage) -> int:
        self.looks += 1
        return super()._count(key, storage)


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fake_step, "Footprint", Checked)
    gc.disable()  # between the two sums it would free what one of them has counted
    yield
    gc.enable()


def dry_run(**settings: Any) -> Checked:
    asked = Settings(global_batch=64, **settings)
    fake_step.needs_of_ranks(asked, size(asked, 8, label=str))
    return Checked.made


@pytest.mark.parametrize("task", ["charlm-gpt", pytest.param("tokens", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "fsdp"},
        {"mode": "fsdp", "precision": "bf16", "activation_checkpointing": True},
        pytest.param({"mode": "pp", "mesh": "pp=4,dp_shard=2"}, marks=pytest.mark.slow),
        {"mode": "localsgd"},
    ],
    ids=lambda found: " ".join(map(str, found.values())),
)
def test_the_peak_is_that_of_a_sum_over_all_storages(task: str, settings: dict[str, Any]) -> None:
    found = dry_run(task=task, **settings)
    assert found.peak == found.whole


@pytest.mark.slow
def test_twice_as_many_blocks_take_not_much_more_than_twice_as_many_looks() -> None:
    """2.6 times; a sum over all storages after each operator would read four times as often."""
    looks = [dry_run(task="tokens", mode="fsdp", model=name).looks for name in ("124m", "350m")]
    assert looks[1] < 3 * looks[0]  # 24 and 12 blocks
