"""A run that is killed several times has the same losses and weights as an undisturbed run, bit by bit.

SIGKILL comes just before an update, sometimes during a save, sometimes long after one. The data come
from DataLoader workers; the model has dropout and running statistics.
"""

import os
import signal
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

from tests.pool import carry_out, lend
from tests.pool_rank import Case
from tests.ranks import run_ranks, weights
from trainer.checkpoint.find import complete
from trainer.checkpoint.parts import whole
from trainer.checkpoint.staging import Staging
from trainer.tasks import synthetic

pytestmark = pytest.mark.slow

COMMON = {
    "task": "tests.checkpoint.test_exact:Drawn",
    "steps": "14",
    "workers": "1",
    "eval_steps": "5",
    "checkpoint_steps": "2",
}


class OneByOne:
    """Data that a DataLoader fetches sample by sample."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


class Drawn(synthetic.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(64), nn.Dropout(0.2), super().model())

    def data(self, *, train: bool) -> Any:
        whole = super().data(train=train)
        return OneByOne(whole.inputs, whole.targets)


class Twice(synthetic.Task):
    """A model in which one layer has two names."""

    def model(self) -> nn.Module:
        layer = nn.Linear(64, 64)
        return nn.Sequential(
            OrderedDict(first=layer, act=nn.ReLU(), again=layer, out=nn.Linear(64, 10))
        )


class KilledAt:
    """Ends a rank by SIGKILL before the given update of this attempt."""

    def __init__(self, update: int) -> None:
        self.update = update

    def __call__(self) -> None:
        step = torch.optim.SGD.step

        def counted(optimizer: torch.optim.SGD, closure: None = None) -> None:
            self.update -= 1
            if self.update == 0:
                for child in psutil.Process().children(recursive=True):  # of the loader
                    child.kill()
                os.kill(os.getpid(), signal.SIGKILL)
            step(optimizer, closure)

        torch.optim.SGD.step = counted  # type: ignore[assignment,method-assign]


def test_a_run_that_is_killed_again_and_again_is_the_same_run(tmp_path: Path) -> None:
    whole = run_ranks(2, tmp_path / "whole", **COMMON)
    broken = tmp_path / "broken"
    for update in (4, 6):
        run_ranks(2, broken, KilledAt(update), code=-signal.SIGKILL, **COMMON)
    events = run_ranks(2, broken, **COMMON)
    for name in ("loss", "grad_norm", "lr"):
        expected = {event["step"]: event[name] for event in whole if event["event"] == "step"}
        seen = [(event["step"], event[name]) for event in events if event["event"] == "step"]
        assert {step for step, _ in seen} == set(range(1, 15))
        assert [value for _, value in seen] == [expected[step] for step, _ in seen], name
    assert any(event.get("action") == "resumed" for event in events)
    one, other = weights(tmp_path / "whole"), weights(broken)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_layer_with_two_names_goes_from_mode_to_mode(tmp_path: Path) -> None:
    common = {
        "task": "tests.checkpoint.test_exact:Twice",
        "schedule": "constant",
        "eval_steps": "0",
    }
    common |= {"optimizer": "adamw", "resume": "force"}
    alone = losses(run_ranks(1, tmp_path / "alone", steps="12", **common))
    modes = [("single", 1), ("ddp", 2), ("ddp", 2), ("fsdp", 2), ("ddp-zero1", 2), ("single", 1)]
    for number, (mode, ranks) in enumerate(modes, start=1):
        events = run_ranks(ranks, tmp_path / "all", steps=str(2 * number), mode=mode, **common)
    assert losses(events) == pytest.approx(alone, rel=1e-5)


def losses(events: list[dict[str, Any]]) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def _die_while_loading() -> None:
    from trainer.checkpoint import read

    def dying(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if os.environ["RANK"] == "1":
        read._Reader.read_data = dying  # type: ignore[assignment]  # noqa: SLF001


def test_a_peer_that_is_lost_while_loading_is_no_damaged_checkpoint(tmp_path: Path) -> None:
    """65 would end the job for good, although a retry can succeed."""
    settings = {"TASK": "synthetic", "STEPS": "4", "OUT": str(tmp_path), "LOG": "json"}
    variables = {f"TRAINER_{name}": value for name, value in settings.items()}
    run_ranks(2, tmp_path, task="synthetic", steps="2")
    with lend(2, fresh=True) as ranks:
        endings = carry_out(Case(variables, _die_while_loading), ranks, timeout=60)
    assert [ending.code for ending in endings] == [69, -signal.SIGKILL], endings[0].stderr


class SlowCopy:
    """Makes every copy of a checkpoint begin late, when a step may long have changed the weights."""

    def __call__(self) -> None:
        copy = Staging.copy

        def late(staging: Staging, state: Any) -> Any:
            time.sleep(0.3)
            return copy(staging, state)

        setattr(Staging, "copy", late)  # noqa: B010  # mypy forbids to assign a method


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        (1, {"mode": "single"}),
        (1, {"mode": "single", "compile": "step"}),
        (1, {"mode": "mp"}),
        (1, {"mode": "hogwild", "processes": "1"}),
        (2, {"mode": "ddp", "ema_decay": "0.9"}),
        (2, {"mode": "ddp", "compile": "step", "ema_decay": "0.9"}),
        (2, {"mode": "ddp-zero1", "optimizer": "adamw"}),
        (2, {"mode": "localsgd", "local_steps": "2", "outer_lr": "0.7"}),
        (2, {"mode": "fsdp"}),
        (2, {"mode": "pp"}),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else str(value),
)
def test_a_checkpoint_has_the_state_after_its_step_however_late_it_is_copied(
    ranks: int, settings: dict[str, str], tmp_path: Path
) -> None:
    common = {"task": "synthetic", "schedule": "constant", "eval_steps": "0"} | settings
    run_ranks(ranks, tmp_path / "four", steps="4", **common)
    late = {"checkpoint_steps": "4", "checkpoint_keep_every": "4", "steps": "9"}
    run_ranks(ranks, tmp_path / "nine", SlowCopy(), **late, **common)
    wanted, found = (
        complete(str(tmp_path / run / "checkpoints" / "step-00000004")) for run in ("four", "nine")
    )
    names = wanted.manifest.tensors.keys()
    assert names == found.manifest.tensors.keys()
    assert [name for name in names if not whole(wanted, name).equal(whole(found, name))] == []
