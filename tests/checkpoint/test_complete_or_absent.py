"""Checkpoints: complete or absent; the newest complete one is used; a damaged one is named and kept."""

import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.checkpoint.small import ALONE, equal, found, label, loaded, save, trained
from trainer.checkpoint.find import Found, newest
from trainer.checkpoint.manifest import Progress
from trainer.checkpoint.read import load
from trainer.checkpoint.retention import Keep
from trainer.checkpoint.state import capture
from trainer.checkpoint.store import Local, split, store_at
from trainer.checkpoint.write import Refused, write
from trainer.config.exits import Exit, Fault


def the(checkpoint: Found | None) -> Found:
    assert checkpoint is not None
    return checkpoint


def test_what_was_saved_is_loaded_bit_by_bit(tmp_path: Path) -> None:
    save(tmp_path, 3)
    checkpoint = the(found(tmp_path))
    assert checkpoint.manifest.progress == Progress(3, 192, "digits", 0, 64)
    assert checkpoint.manifest.torch == torch.__version__
    model, optimizer = loaded(checkpoint)
    assert equal((model, optimizer), trained(3))
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    assert optimizer.param_groups[0]["nesterov"] is False


def test_the_newest_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    for step in (1, 2, 9, 10, 11):
        save(tmp_path, step, keep=Keep(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010", "step-00000011"]
    assert the(found(tmp_path)).where == str(tmp_path / "step-00000011")


def test_nothing_there_is_a_start(tmp_path: Path) -> None:
    assert found(tmp_path / "none") is None
    assert found(tmp_path / "none", "never") is None


@pytest.mark.parametrize(
    "look", [found, lambda folder: newest(store_at(folder), before=2, runtime=ALONE)]
)
def test_a_folder_that_may_not_be_read_is_no_start(look: Callable[[Path], object]) -> None:
    """As of a claim that root has written to, in a pod of another user."""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        folder = Path(top) / "checkpoints"
        save(folder, 1)
        folder.chmod(0o311)
        own = os.geteuid()
        if own == 0:  # who may read everything
            os.seteuid(65534)
        try:
            with pytest.raises(Fault, match=f"checkpoints {folder}: Permission denied") as caught:
                look(folder)
        finally:
            os.seteuid(own)
            folder.chmod(0o755)
    assert caught.value.code == Exit.DATA


def test_a_half_written_one_is_not_seen_and_removed_at_the_start(tmp_path: Path) -> None:
    whole = save(tmp_path, 1)
    partial = tmp_path / ".step-00000002.partial"
    partial.mkdir()
    (partial / "rank-00000.data").write_bytes(b"half")
    assert the(found(tmp_path)).where == whole
    assert not partial.exists()


def test_what_is_being_written_is_left_alone(tmp_path: Path) -> None:
    writer = Local(tmp_path)
    folder = writer.begin("step-00000002")
    assert found(tmp_path) is None
    assert (tmp_path / folder).exists()
    writer.discard(folder)
    assert list(tmp_path.iterdir()) == []


def cut(path: Path) -> None:
    file = path / "rank-00000.data"
    file.write_bytes(file.read_bytes()[:-1])


def flip(path: Path) -> None:
    file = path / "rank-00000.data"
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)


def lose(path: Path) -> None:
    (path / "rank-00000.data").unlink()


def lose_listing(path: Path) -> None:
    (path / "muster.json").unlink()


def break_listing(path: Path) -> None:
    (path / "muster.json").write_text("{", encoding="utf-8")


def change_listing(path: Path) -> None:
    text = (path / "muster.json").read_text(encoding="utf-8")
    changed = text.replace('"samples": 128', '"samples": 129').replace(
        '"samples": 64', '"samples": 65'
    )
    assert changed != text
    (path / "muster.json").write_text(changed, encoding="utf-8")


@pytest.mark.parametrize("damage", [cut, flip, lose, lose_listing, break_listing, change_listing])
def test_a_damaged_one_is_named_skipped_and_kept(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, newest = save(tmp_path, 1), save(tmp_path, 2)
    damage(Path(newest))
    assert the(found(tmp_path)).where == older
    assert f"checkpoint {newest} is damaged; it is skipped and kept" in caplog.text
    assert Path(newest).exists()
    damage(Path(older))
    with pytest.raises(Fault, match="all 2 checkpoints are damaged") as caught:
        found(tmp_path)
    assert caught.value.code == Exit.DATA


def test_a_renamed_one_is_not_taken_for_another_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, newest = save(tmp_path, 1), save(tmp_path, 2)
    Path(newest).rename(tmp_path / "step-00000099")
    assert the(found(tmp_path)).where == older
    assert "muster.json belongs to step 2" in caplog.text


def test_a_damaged_one_makes_way_for_the_same_step_and_is_kept(tmp_path: Path) -> None:
    save(tmp_path, 1)
    newest = Path(save(tmp_path, 2))
    flip(newest)
    assert save(tmp_path, 2) == str(newest)
    assert the(found(tmp_path)).where == str(newest)
    assert (tmp_path / "step-00000002.replaced.1").exists()
    save(tmp_path, 3, keep=Keep(2))
    assert (tmp_path / "step-00000002.replaced.1").exists()
    save(tmp_path, 4, keep=Keep(2))  # it is removed with the checkpoint that it replaced
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def test_damaged_ones_of_later_steps_do_not_push_out_a_good_one(tmp_path: Path) -> None:
    for step in (1, 4, 5):
        save(tmp_path, step)
    for step in (4, 5):
        flip(tmp_path / f"step-{step:08d}")
    assert the(found(tmp_path)).manifest.progress.step == 1
    new = save(tmp_path, 2, keep=Keep(2))
    assert the(found(tmp_path)).where == new
    assert len([*tmp_path.iterdir()]) == 4


def test_a_newer_format_is_said_and_not_skipped(tmp_path: Path) -> None:
    from trainer.checkpoint import manifest

    save(tmp_path, 1)
    listing = Path(save(tmp_path, 2)) / "muster.json"
    body = json.loads(listing.read_text(encoding="utf-8"))["checkpoint"] | {"format": 3, "more": 1}
    outer = {"checksum": manifest.checksum(body), "checkpoint": body}
    listing.write_text(json.dumps(outer), encoding="utf-8")
    with pytest.raises(Fault, match="written in format 3, this muster reads up to 2") as caught:
        found(tmp_path)
    assert caught.value.code == Exit.DATA
    # A run that continued from a named older checkpoint does not remove it when it saves.
    save(tmp_path, 3, keep=Keep(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_a_checkpoint_named_by_hand(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    assert the(found(tmp_path / "elsewhere", path)).where == path
    with pytest.raises(Fault, match="TRAINER_RESUME=.*not a complete checkpoint") as caught:
        found(tmp_path, str(tmp_path / "typo"))
    assert caught.value.code == Exit.DATA
    newest = save(tmp_path / "run" / "checkpoints", 2)
    with pytest.raises(Fault, match=f"TRAINER_RESUME=.*its newest is {newest}"):
        found(tmp_path, str(tmp_path / "run"))


@pytest.mark.parametrize("named", ["/best", "file:///best", "/best/"])
def test_a_checkpoint_at_the_root_of_the_file_system(named: str) -> None:
    store, name = split(named)
    assert store.where(name) == "/best"


def test_starting_over_sets_the_old_ones_aside(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for number in (1, 2):
        save(folder, 5)
        assert found(folder, "never") is None
        assert found(folder) is None
        assert (folder / f"aside.{number}" / "step-00000005").exists()


class Silent(nn.Linear):
    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        raise ValueError


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Silent(3, 2), "ValueError"),
        (nn.Linear(4, 2), "Size mismatch"),
        (nn.Sequential(nn.Linear(3, 2)), "Missing key in checkpoint state_dict"),
        (nn.Linear(3, 2, bias=False), "1 tensors that the model lacks, such as model.bias"),
    ],
)
def test_another_model_does_not_fit(other: nn.Module, reason: str, tmp_path: Path) -> None:
    save(tmp_path, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(Fault, match=f"does not fit this run.*{reason}") as caught:
        load(the(found(tmp_path)), other, optimizer, {}, runtime=ALONE)
    assert caught.value.code == Exit.DATA


def test_state_that_a_new_optimiser_lacks_is_not_lost_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizer = trained(1)
    optimizer.state[model.get_parameter("bias")]["slow"] = torch.ones(2)
    store = store_at(tmp_path)
    write(capture(model, optimizer, {}), label(1), store, Keep(1), group=None)
    loaded(the(found(tmp_path)))
    (message,) = [record.getMessage() for record in caplog.records]
    assert "1 tensors of the optimiser, such as state.bias.slow, are not loaded" in message


def test_a_tensor_without_elements_is_no_other_model(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    model.register_buffer("cache", torch.empty(0, 4))
    store = store_at(tmp_path)
    write(capture(model, optimizer, {}), label(1), store, Keep(1), group=None)
    load(the(found(tmp_path)), model, optimizer, {}, runtime=ALONE)


class Counter:
    def __init__(self, count: int) -> None:
        self.state: dict[str, Any] = {"count": count, "sums": [torch.full((2,), float(count))]}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_what_else_a_run_registers_is_saved_and_may_be_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.checkpoint.small import label
    from trainer.checkpoint.state import capture
    from trainer.checkpoint.store import store_at
    from trainer.checkpoint.write import write

    state = capture(*trained(1), {"counter": Counter(5)})
    write(state, label(1), store_at(tmp_path), Keep(1), group=None)
    model, optimizer = trained(0)
    counter, new = Counter(0), Counter(7)
    extra = {"counter": counter, "new": new}
    lacking = load(the(found(tmp_path)), model, optimizer, extra, runtime=ALONE)
    assert lacking == ["new"]
    assert counter.state["count"] == 5
    assert counter.state["sums"][0].tolist() == [5.0, 5.0]
    assert new.state["count"] == 7
    assert "has no new: it starts here" in caplog.text


def test_what_only_a_pickle_could_hold_is_refused(tmp_path: Path) -> None:
    from tests.checkpoint.small import label
    from trainer.checkpoint.store import store_at
    from trainer.checkpoint.write import write

    with pytest.raises(RuntimeError, match="odd is a object; a checkpoint holds tensors"):
        write({"odd": object()}, label(1), store_at(tmp_path), Keep(1), group=None)
    assert list(tmp_path.iterdir()) == []


def test_storage_that_refuses_costs_no_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = save(tmp_path, 1)
    monkeypatch.setattr(Local, "free", lambda _: 3)
    with pytest.raises(Refused, match="rank 0: 64 bytes needed, 3 free"):
        save(tmp_path, 2)
    monkeypatch.undo()

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(
        Refused, match="step-00000002: cannot be written: rank 0: Input/output error"
    ):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    monkeypatch.undo()
    assert the(found(tmp_path)).where == older
    save(tmp_path, 2)
