"""What a checkpoint lacks keeps its initial state if other settings made it; else it is damage."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.checkpoint.small import ALONE, equal, found, label, loaded, save, trained
from trainer.checkpoint.find import complete
from trainer.checkpoint.read import load
from trainer.checkpoint.retention import Keep
from trainer.checkpoint.state import capture
from trainer.checkpoint.store import store_at
from trainer.checkpoint.write import add_metric, write
from trainer.config.exits import Exit, Fault


def part_trained(*, frozen: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model, whose first layer may be frozen, and its optimiser."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].requires_grad_(not frozen)
    return model, torch.optim.AdamW(one for one in model.parameters() if one.requires_grad)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Any:
    """Return a checkpoint of two steps with the first layer frozen."""
    model, optimizer = part_trained(frozen=True)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    write(capture(model, optimizer, {}), label(2), store_at(tmp_path), Keep(1), group=None)
    return found(tmp_path)


@pytest.mark.parametrize("same", [True, False])
def test_what_was_frozen_gets_the_state_of_a_new_optimiser(
    same: Any, checkpoint: Any, caplog: Any
) -> None:
    model, optimizer = part_trained(frozen=False)
    load(
        checkpoint,
        model,
        optimizer,
        {},
        runtime=ALONE,
        optimizer_state=same,
        other_settings=True,
    )
    steps = [len(one) and float(one["step"]) for one in optimizer.state.values()]
    assert sorted(steps) == ([0, 0, 2, 2] if same else [0, 0, 0, 0])
    if same:
        assert "lacks 6 values of the optimiser's state, such as 0.bias.exp_avg:" in caplog.text


@pytest.mark.parametrize("place", ["checkpoints", "memory://added"])
def test_a_metric_is_added_to_a_complete_checkpoint(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINER_CHECKPOINT_KEY", "a secret")
    where = save(place, 3)
    add_metric(complete(where), 0.5)
    assert complete(where).manifest.metric == 0.5
    assert equal(loaded(complete(where)), trained(3))


def test_a_missing_part_of_a_state_is_damage_if_the_settings_are_the_same(checkpoint: Any) -> None:
    model, optimizer = part_trained(frozen=True)
    del checkpoint.manifest.tensors["optimizer.state.1.bias.exp_avg"]
    with pytest.raises(Fault, match=r"Missing key in checkpoint state_dict: optimizer") as caught:
        load(checkpoint, model, optimizer, {}, runtime=ALONE)
    assert caught.value.code == Exit.DATA


def test_a_parameter_without_a_gradient_yet_has_no_state(checkpoint: Any) -> None:
    model, optimizer = part_trained(frozen=False)
    load(checkpoint, model, optimizer, {}, runtime=ALONE)
    assert sorted(map(len, optimizer.state.values())) == [0, 0, 3, 3]
