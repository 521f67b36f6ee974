"""A checkpoint hardly delays training and takes hardly more disk space than its tensors.

A model is trained and saved after each step, in turn by torch.save and by the trainer, on the same disk.
A wait is the median over the rounds.
"""

import os
import statistics
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.checkpoint.small import ALONE, found, label
from trainer.checkpoint.manifest import MANIFEST_FILE, name_of
from trainer.checkpoint.read import load
from trainer.checkpoint.retention import Keep
from trainer.checkpoint.saver import Saver
from trainer.checkpoint.state import capture
from trainer.checkpoint.store import store_at
from trainer.checkpoint.write import write
from trainer.tasks.digits import Net

pytestmark = pytest.mark.slow

LAYERS, WIDTH = 13, 1024  # with AdamW's two moments 156 MiB


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = nn.Sequential(*layers, nn.BatchNorm1d(WIDTH))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def test_a_training_waits_a_tenth_of_a_synchronous_save_and_the_disk_holds_little_more(
    tmp_path: Path,
) -> None:
    model, optimizer = network()
    inputs = torch.randn(64, WIDTH)

    def step() -> None:
        model(inputs).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    synchronous, blocked = [], []
    with Saver(store_at(tmp_path / "checkpoints"), Keep(1), runtime=ALONE, timeout=60) as saver:
        saver.watch(optimizer)
        for number in range(1, 7):
            state = capture(model, optimizer, {})
            began = time.monotonic()
            with (tmp_path / "state.pt").open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            synchronous.append(time.monotonic() - began)
            began = time.monotonic()
            saver.begin(capture(model, optimizer, {}), label(number), since=began)
            step()  # the saved state is the one before it
            saved = saver.wait()
            assert saved is not None
            assert saved.refusal is None
            blocked.append(saved.blocked_s)
    usual, waited = statistics.median(synchronous), statistics.median(blocked)
    print(f"torch.save {usual:.3f} s, blocked {waited:.4f} s, in all {saved.seconds:.3f} s")
    assert waited < 0.1 * usual
    expected = sum(tensor.nbytes for tensor in torch.load(tmp_path / "state.pt")["model"].values())
    expected += 2 * sum(parameter.nbytes for parameter in model.parameters())
    files = (tmp_path / "checkpoints" / "step-00000006").iterdir()
    assert expected <= sum(file.stat().st_size for file in files) <= 1.05 * expected

    checkpoint = found(tmp_path / "checkpoints")
    assert checkpoint is not None
    other, _ = restored = network()
    load(checkpoint, *restored, {}, runtime=ALONE)
    for name, tensor in torch.load(tmp_path / "state.pt")["model"].items():
        assert torch.equal(tensor, other.state_dict()[name]), name


@pytest.mark.parametrize(("model", "most"), [(Net(), 1.03), (network()[0], 1.001)])
def test_the_disk_holds_what_torch_save_writes_and_the_manifest(
    model: nn.Module, most: float, tmp_path: Path
) -> None:
    """The manifest is a thirtieth of a checkpoint, but only for a model as small as that of digits."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    usual = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(usual, tmp_path / "state.pt")
    write(capture(model, optimizer, {}), label(1), store_at(tmp_path), Keep(1), group=None)
    held = {file.name: file.stat().st_size for file in (tmp_path / name_of(1)).iterdir()}
    theirs = (tmp_path / "state.pt").stat().st_size
    ours = sum(held.values())
    print(f"{ours:,} bytes, {ours / theirs:.4f} of torch.save's {theirs:,}")
    assert ours - held[MANIFEST_FILE] <= theirs
    assert ours <= most * theirs
