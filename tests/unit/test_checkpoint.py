"""Checkpoints: complete or absent, the newest complete one wins, damage is named and left alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainer import checkpoint
from trainer.checkpoint import Progress
from trainer.exits import Exit, Fault
from trainer.runtime import Runtime
from trainer.settings import Settings
from trainer.sizing import size

ALONE = Runtime(
    0, 0, torch.device("cpu"), "none", size(Settings(), 1, label=str), None, None, data_rank=0
)


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def save(folder: Path, step: int, keep: int = 3) -> Path:
    progress = Progress(step, step * 64, "digits", 0, 64)
    return checkpoint.save(folder, progress, *trained(step), runtime=ALONE, keep=keep)


def test_what_was_saved_is_loaded_bit_by_bit(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    model, optimizer = trained(0)
    progress = checkpoint.load(path, model, optimizer, runtime=ALONE)
    assert progress == Progress(3, 192, "digits", 0, 64)
    expected, expected_optimizer = trained(3)
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        momentum = optimizer.state[mine]["momentum_buffer"]
        assert torch.equal(momentum, expected_optimizer.state[theirs]["momentum_buffer"])
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


def test_the_newest_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    for step in (1, 2, 9, 10, 11):
        save(tmp_path, step, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010", "step-00000011"]
    assert checkpoint.find("auto", tmp_path, runtime=ALONE) == tmp_path / "step-00000011"


def test_nothing_there_is_a_start(tmp_path: Path) -> None:
    assert checkpoint.find("auto", tmp_path / "none", runtime=ALONE) is None
    assert checkpoint.find("never", tmp_path / "none", runtime=ALONE) is None


def test_a_half_written_one_is_not_seen_and_does_not_disturb(tmp_path: Path) -> None:
    whole = save(tmp_path, 1)
    partial = tmp_path / ".step-00000002.partial"
    partial.mkdir()
    (partial / "__0_0.distcp").write_bytes(b"half")
    assert checkpoint.find("auto", tmp_path, runtime=ALONE) == whole
    assert save(tmp_path, 2).name == "step-00000002"
    assert not partial.exists()


def cut(path: Path) -> None:
    file = path / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])


def lose(path: Path) -> None:
    (path / ".metadata").unlink()


def lose_listing(path: Path) -> None:
    (path / "muster.json").unlink()


def break_listing(path: Path) -> None:
    (path / "muster.json").write_text("{", encoding="utf-8")


def change_listing(path: Path) -> None:
    (path / "muster.json").write_text(json.dumps({"progress": {}, "files": {}}), encoding="utf-8")


@pytest.mark.parametrize("damage", [cut, lose, lose_listing, break_listing, change_listing])
def test_a_damaged_one_is_named_skipped_and_kept(
    damage: Callable[[Path], None], tmp_path: Path, capsys: Any
) -> None:
    older, newest = save(tmp_path, 1), save(tmp_path, 2)
    damage(newest)
    assert checkpoint.find("auto", tmp_path, runtime=ALONE) == older
    assert f"checkpoint {newest} is damaged and left alone" in capsys.readouterr().err
    assert newest.exists()
    damage(older)
    with pytest.raises(Fault, match="all 2 checkpoints are damaged") as caught:
        checkpoint.find("auto", tmp_path, runtime=ALONE)
    assert caught.value.code == Exit.DATA


def test_a_checkpoint_named_by_hand(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    assert checkpoint.find(str(path), tmp_path / "elsewhere", runtime=ALONE) == path
    with pytest.raises(Fault, match="TRAINER_RESUME=.*not a complete checkpoint") as caught:
        checkpoint.find(str(tmp_path / "typo"), tmp_path, runtime=ALONE)
    assert caught.value.code == Exit.DATA


def test_starting_over_sets_the_old_ones_aside(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for number in (1, 2):
        save(folder, 5)
        assert checkpoint.find("never", folder, runtime=ALONE) is None
        assert checkpoint.find("auto", folder, runtime=ALONE) is None
        assert (tmp_path / f"checkpoints.{number}" / "step-00000005").exists()


def test_another_model_does_not_fit(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    other = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(Fault, match="does not fit this run") as caught:
        checkpoint.load(path, other, optimizer, runtime=ALONE)
    assert caught.value.code == Exit.DATA


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Fault, match="cannot be written: Not a directory") as caught:
        save(tmp_path / "file", 1)
    assert caught.value.code == Exit.DATA
