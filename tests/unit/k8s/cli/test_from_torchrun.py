"""`--from-torchrun`: makes a job file from a command line, and render.py accepts it."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli import command
from k8s.cli.from_torchrun import convert
from tests.rendering import refused

NODES_AND_RANKS = {"nodes": 2, "resources": {"gpu": 8}}


def values(line: str) -> dict[str, Any]:
    found, _ = convert(shlex.split(line))
    return {key: value for key, value in found.items() if key not in ("name", "image")}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "torchrun --nnodes 2 --nproc-per-node 8 train.py --lr 1",
            NODES_AND_RANKS
            | {"run": {"script": "train.py", "args": ["--lr", "1"]}, "code": {"path": "."}},
        ),
        (
            "/opt/bin/torchrun --nnodes=2:2 --nproc_per_node=8 -m my.module --nnodes 5",
            NODES_AND_RANKS
            | {"run": {"module": "my.module", "args": ["--nnodes", "5"]}, "code": {"path": "."}},
        ),
        (
            "python3.11 -m torch.distributed.run --standalone --nnodes 4 /opt/train.py",
            {"nodes": 1, "resources": {"gpu": 1}, "run": {"script": "/opt/train.py"}},
        ),
        (
            "torchrun --nnodes 1:4 --nproc-per-node gpu --max-restarts 3 --no-python ../run.sh a",
            {
                "nodes": {"min": 1, "max": 4},
                "run": {"command": ["../run.sh"], "args": ["a"]},
                "faults": {"restarts": "ranks", "maxRestarts": 3},
            },
        ),
        (
            "torchrun --numa-binding node --signals_to_handle TERM --event-log-handler a /a.py",
            {"nodes": 1, "resources": {"gpu": 1}, "run": {"script": "/a.py"}},
        ),
        (
            "NCCL_DEBUG=INFO torchrun --rdzv-endpoint a:1 -r 3 /a.py 'two words' $HOME",
            {
                "nodes": 1,
                "resources": {"gpu": 1},
                "run": {"script": "/a.py", "args": ["two words", "$HOME"]},
                "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
            },
        ),
    ],
)
def test_a_command_line_becomes_a_job(line: str, wanted: dict[str, Any]) -> None:
    assert values(line) == wanted


@pytest.mark.parametrize(
    ("line", "noted"),
    [
        ("python -m torch.distributed.launch --nproc_per_node=2 t.py", True),
        ("python -m torch.distributed.launch --use_env --nproc_per_node=2 t.py", False),
        ("torchrun --nproc_per_node=2 t.py", False),
    ],
)
def test_an_argument_that_only_the_old_launcher_gives_is_noted(line: str, *, noted: bool) -> None:
    found, notes = convert(line.split())
    assert found["run"] == {"script": "t.py"}
    assert any("read LOCAL_RANK instead" in note for note in notes) == noted


@pytest.mark.parametrize(
    ("script", "name"), [("Train_GPT2.py", "train-gpt2"), ("1.py", "job"), ("é.py", "job")]
)
def test_the_job_has_the_name_of_its_script(script: str, name: str) -> None:
    assert convert(["torchrun", script])[0]["name"] == name


def test_what_is_printed_is_a_job_file_with_its_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    line = "torchrun --nproc-per-node 8 --tee 3 train.py --x 'a  b'"
    assert command.main(["--from-torchrun", "--", *shlex.split(line)]) == 0
    out, err = capsys.readouterr()
    assert "note: --tee: left out; the launcher sets it" in err
    assert "by hand" not in err
    assert "#   resources.gpu: 8, one for each rank; without GPUs set procsPerNode\n" in out
    (tmp_path / "job.yaml").write_text(out)
    assert command.main(["job.yaml", "--all", "--check"]) == 0
    assert yaml.safe_load(out)["run"]["args"] == ["--x", "a  b"]


def test_what_render_would_refuse_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text("")
    assert command.main(["--from-torchrun", "--", "torchrun", "train.py"]) == 0
    assert "to be corrected by hand: run.script='train.py': no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "'nothing' is not torchrun, which also starts scripts for accelerate or DeepSpeed"),
        ("", "write the whole command line after --, e.g. -- torchrun --nproc-per-node 8 train.py"),
        ("accelerate launch t.py", "'accelerate launch t.py' is not torchrun, which also starts"),
        ("python train.py", "'python train.py' is not torchrun"),
        ("deepspeed train.py --a b", "'deepspeed train.py --a' is not torchrun"),
        ("torchrun --nnodes 2", "no program in 'torchrun --nnodes 2'"),
        ("torchrun --bogus train.py", "unrecognized arguments: --bogus"),
        ("torchrun --nnodes two train.py", "--nnodes='two': must be a number, or MIN:MAX"),
        (
            "torchrun --nproc-per-node 0 train.py",
            "--nproc-per-node='0': must be a number, at least 1",
        ),
        ("torchrun --nproc-per-node all train.py", "--nproc-per-node='all': must be a number"),
        ("torchrun --max-restarts x train.py", "argument --max-restarts"),
        ("torchrun --nnodes", "expected one argument"),
    ],
)
def test_a_line_that_is_none_of_torchruns(
    line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(["--from-torchrun", "--", *line.split()], tmp_path, capsys, out=False)
    assert said.startswith("render.py: --from-torchrun: ")
    assert says in said
