"""python -m trainer.export: writes the weights for other programs, or ends with a code and one line."""

import resource
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoint.small import label, loaded, save, trained
from tests.conftest import run_command
from trainer.checkpoint.find import complete
from trainer.checkpoint.retention import Keep
from trainer.checkpoint.state import capture
from trainer.checkpoint.store import store_at
from trainer.checkpoint.write import write
from trainer.config.exits import Exit
from trainer.export import main


def test_what_is_exported_gives_the_same_logits(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "checkpoints", 3)
    out = tmp_path / "new" / "weights.safetensors"
    assert main([checkpoint, "-o", str(out)]) == Exit.DONE
    model, _ = trained(0)
    model.load_state_dict(load_file(out))
    expected, _ = loaded(complete(checkpoint))
    inputs = torch.randn(5, 3)
    assert torch.equal(model(inputs), expected(inputs))
    assert [path.name for path in out.parent.iterdir()] == [out.name]


class Counting(torch.nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 5}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"seen": 5}


def test_what_is_no_tensor_is_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Counting(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    write(capture(model, optimizer, {}), label(1), store_at(tmp_path), Keep(1), group=None)
    out = tmp_path / "weights.safetensors"
    assert main([str(tmp_path / "step-00000001"), "-o", str(out)]) == Exit.DONE
    assert sorted(load_file(out)) == ["bias", "weight"]
    shown = capsys.readouterr().err
    assert shown.splitlines() == ["export: _extra_state.seen is left out: not a tensor"]


def test_a_dtype_that_the_format_does_not_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = trained(1)
    model.register_buffer("turns", torch.ones(2, dtype=torch.complex128))
    write(capture(model, optimizer, {}), label(1), store_at(tmp_path), Keep(1), group=None)
    out = tmp_path / "weights.safetensors"
    assert main([str(tmp_path / "step-00000001"), "-o", str(out)]) == Exit.CONFIG
    shown = capsys.readouterr().err
    said = f"{out}: a safetensors file cannot hold turns, of torch.complex128"
    assert shown.splitlines() == [f"export: {said} (exit 64)"]
    assert not out.exists()


class Average:
    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.full((2, 3), 7.0)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        raise AssertionError(f"an export loads nothing into what was saved: {state}")


def test_averaged_weights_take_the_place_of_the_last_ones(tmp_path: Path) -> None:
    state = capture(*trained(1), {"ema": Average()})
    write(state, label(1), store_at(tmp_path), Keep(1), group=None)
    out = tmp_path / "weights.safetensors"
    assert main([str(tmp_path / "step-00000001"), "-o", str(out), "--ema"]) == Exit.DONE
    exported = load_file(out)
    assert exported["weight"].tolist() == [[7.0] * 3] * 2
    assert torch.equal(exported["bias"], trained(1)[0].state_dict()["bias"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["CHECKPOINT", "-o", "OUT", "--ema"], 64, "its run had no TRAINER_EMA_DECAY"),
        (["DAMAGED", "-o", "OUT"], 65, "not a complete checkpoint: rank-00000.data has 63 bytes"),
        (["missing", "-o", "OUT"], 65, "not a complete checkpoint: .*No such file"),
        (
            ["RUN", "-o", "OUT"],
            65,
            "a run's folder, not a checkpoint; its newest is .*step-00000002",
        ),
        (["CHECKPOINT", "-o", "CHECKPOINT/muster.json/x"], 71, "cannot be written: "),
        (["CHECKPOINT"], 64, "required: -o"),
        (["CHECKPOINT", "-o", "."], 64, "-o .: is a folder; name a file"),
        (
            ["CHECKPOINT", "-o", "a.pt"],
            64,
            "-o a.pt: the file has the format safetensors; name it a.s",
        ),
    ],
)
def test_a_refusal_is_one_line_a_code_and_no_file(
    arguments: list[str], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    places = {"CHECKPOINT": save(tmp_path / "a", 1), "DAMAGED": save(tmp_path / "b", 1)}
    places["RUN"] = str(tmp_path / "run")
    for step in (1, 2):
        save(tmp_path / "run" / "checkpoints", step)
    file = Path(places["DAMAGED"]) / "rank-00000.data"
    file.write_bytes(file.read_bytes()[:-1])
    places["OUT"] = str(tmp_path / "out.safetensors")
    for name, place in places.items():
        arguments = [argument.replace(name, place) for argument in arguments]
    assert main(arguments) == code
    assert re.search(words, capsys.readouterr().err)
    assert not Path(places["OUT"]).exists()


def test_a_full_disk_is_71_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, out = save(tmp_path / "checkpoints", 1), tmp_path / "out.safetensors"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        assert main([checkpoint, "-o", str(out)]) == Exit.MACHINE
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in capsys.readouterr().err
    assert not out.exists()


def test_storage_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out = save(tmp_path / "checkpoints", 1), tmp_path / "out.safetensors"

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("trainer.checkpoint.parts.read_part", fail)
    assert main([checkpoint, "-o", str(out)]) == Exit.MACHINE
    said = f"export: {checkpoint}: cannot be read: [Errno 5] Input/output error (exit 71)"
    assert capsys.readouterr().err.splitlines() == [said]


@pytest.mark.parametrize("what", ["--help", pytest.param("an export", marks=pytest.mark.slow)])
def test_an_export_imports_no_more_than_it_needs(tmp_path: Path, what: str) -> None:
    """The import of DCP would take a third of an export's time, that of torch nearly all of --help's."""
    checkpoint, out = save(tmp_path / "checkpoints", 1), str(tmp_path / "weights.safetensors")
    words = ["--help"] if what == "--help" else [checkpoint, "-o", out]
    result = run_command(
        [sys.executable, "-X", "importtime", "-m", "trainer.export", *words], check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "argparse" in imported
    assert ("torch" in imported, "safetensors" in imported) == (what != "--help",) * 2
    assert "torch.distributed.checkpoint" not in imported
    assert ("safetensors.torch.load_file" if what == "--help" else out) in result.stdout
