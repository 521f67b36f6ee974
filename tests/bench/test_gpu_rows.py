"""The rows of a GPU, tried with small models on a machine without one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.bench import gpu
from tests.bench.peers.gpu_task import Text
from tests.conftest import ROOT, wait_for
from trainer.config.settings import Settings


@pytest.mark.slow
def test_both_contenders_of_a_row_take_their_turns(tmp_path: Path, capsys: Any) -> None:
    rows = ["resnet50 bf16, channels last", "gpt124m fp32"]
    assert gpu.main([*rows, "--small", "--rounds", "1", "--folder", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("gpu-*.json")
    result = json.loads(file.read_text(encoding="utf-8"))
    assert list(result["rows"]) == rows
    shown = capsys.readouterr().out
    for name, row in result["rows"].items():
        assert row["muster"] > 0
        assert row["plain"] > 0
        assert f"| {name} | {row['muster']:,.0f} {row['units']} |" in shown


@pytest.mark.slow
def test_no_contender_goes_on_after_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.gpu", "--small", "-o", str(tmp_path)]
    bench = psutil.Popen([*command, "gpt124m fp32"], cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_for(lambda: len(bench.children()) >= 2, seconds=60)
    contenders = bench.children()
    bench.terminate()
    assert bench.wait(60) == 143
    assert not any(one.is_running() for one in contenders)


def test_a_row_that_fails_is_shown_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    def of_a_row(row: gpu.Row, **_: Any) -> dict[str, Any]:
        if row.net == "Pictures":
            raise RuntimeError("Traceback\ntorch.OutOfMemoryError: CUDA out of memory")
        times = {"muster": 2.0, "plain": 1.0, "wall": 0.5, "wall_spread": 0.01}
        return {"units": "tokens", "peak_share": 0.4, **times}

    monkeypatch.setattr(gpu, "measured", of_a_row)
    rows = ["resnet50 fp32", "gpt124m fp32"]
    assert gpu.main([*rows, "--small", "--folder", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "| resnet50 fp32 | failed: torch.OutOfMemoryError: CUDA out of memory |" in shown
    assert "| gpt124m fp32 | 2 tokens | 40% | 1 | 0.50 (1%) |" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main([])
    assert ended.value.code == 2
    assert "torch finds no GPU here; --small tries the rows without one" in capsys.readouterr().err


@pytest.mark.slow
def test_operations_are_counted_of_the_whole_models() -> None:
    """ResNet-50 takes 4.1 billion multiply-adds forward (He et al., 2016); backward takes twice as many.

    The GPT takes six for each parameter and token (Kaplan et al., 2020), and attention.
    """
    pictures = gpu.operations(gpu.ROWS["resnet50 fp32"], "fp32")
    assert pictures == pytest.approx(3 * 2 * 4.1e9, rel=0.05)
    model = Text(Settings()).model()
    parameters = sum(one.numel() for one in model.parameters())
    text = gpu.operations(gpu.ROWS["gpt124m fp32"], "fp32")
    assert 1 < text / (6 * parameters * 1024) < 1.3


def test_every_row_has_a_peer_of_the_same_settings() -> None:
    """A setting that the bare loop does not have would make the comparison unfair."""
    known = {"optimizer", "precision", "channels_last", "compile"}
    assert all(set(row.settings) <= known for row in gpu.ROWS.values())
