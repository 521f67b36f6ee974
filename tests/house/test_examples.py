"""The job files in k8s/jobs: listed, rendered for every launcher that supports them, and trained."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.models import resnet18

from k8s.cli.command import main
from tests.conftest import ROOT, run_command
from tests.ranks import weights
from tests.rendering import LAUNCHERS
from tests.unit.trainer.tasks.test_images import photos
from trainer import tasks
from trainer.config.environment import from_environment

JOBS = ROOT / "k8s" / "jobs"
FILES = sorted(path.name for path in JOBS.glob("*.yaml"))

CPU = "resources={cpu: 1, memory: 2Gi}"
GPT = [
    CPU,
    "nccl=",
    "nodes=1",
    "procsPerNode=2",
    "trainer.globalBatch=16",
    "trainer.precision=fp32",
]
# An example, and what is changed to train it here: no GPU, few steps, data in a folder.
TRAINED = {
    "01-digits.yaml": [],
    "02-digits-ddp.yaml": [],
    "04-fsdp.yaml": [*GPT, "checkpoints="],
    "05-image-folder.yaml": [
        CPU,
        "checkpoints=",
        "procsPerNode=1",
        "trainer.model=resnet18",
        "trainer.imageSize=21",
        "trainer.globalBatch=8",
        "trainer.workers=1",
        "trainer.precision=fp32",
    ],
    "06-text.yaml": [*GPT, "procsPerNode=1", "data=", "checkpoints=", "trainer.compile="],
    "07-composed-mesh.yaml": [
        *GPT,
        "procsPerNode=4",
        "checkpoints=",
        "trainer.mesh=pp=2,tp=2",
        "trainer.microBatch=4",
    ],
    "08-own-task.yaml": ["code="],
    "09-own-operator.yaml": [],
    "14-fine-tune.yaml": [
        CPU,
        "checkpoints=",
        "volumes=",
        "procsPerNode=2",
        "trainer.model=resnet18",
        "trainer.imageSize=32",
        "trainer.globalBatch=8",
        "trainer.workers=1",
        "trainer.precision=fp32",
    ],
    "15-own-model.yaml": [
        CPU,
        "checkpoints=",
        "procsPerNode=2",
        "trainer.imageSize=32",
        "trainer.taskLayers=2",
        "trainer.taskWidth=16",
        "trainer.taskPatch=8",
        "trainer.globalBatch=8",
        "trainer.workers=1",
        "trainer.precision=fp32",
    ],
    "16-matrix.yaml": ["matrix="],  # tests/report/test_matrix.py has two of its jobs
}


def test_every_example_is_in_the_table_and_says_when_to_use_it() -> None:
    table = (JOBS / "README.md").read_text(encoding="utf-8")
    listed = [line.split("(")[1].split(")")[0] for line in table.splitlines() if ".yaml) |" in line]
    assert sorted(listed) == FILES
    assert len(FILES) == 16
    for name in FILES:
        assert (JOBS / name).read_text(encoding="utf-8").startswith("# When: "), name


@pytest.mark.slow
def test_the_files_that_make_does_not_render_are_named(tmp_path: Path) -> None:
    makefile, page = (
        (ROOT / "Makefile").read_text(),
        " ".join((JOBS / "README.md").read_text().split()),
    )
    (usual,) = re.findall(r"^LAUNCHERS \?= (.*)$", makefile, re.MULTILINE)
    (refusing, instead) = re.findall(r'refuses ([\d, and]+): add `LAUNCHERS="(.*?)"`', page)[0]

    def failing(launchers: str) -> list[str]:
        options = [word for one in launchers.split() for word in ("--launcher", one)]
        return [
            name[:2] for name in FILES if main([str(JOBS / name), *options, "-o", str(tmp_path)])
        ]

    assert failing(usual) == re.findall(r"\d+", refusing)
    assert failing(instead) == []


@pytest.mark.parametrize("name", FILES)
def test_an_example_is_rendered_for_every_launcher_that_takes_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(JOBS / name), "-o", str(tmp_path)]) == 0  # for its own
    taken = []
    for launcher in LAUNCHERS:
        code = main([str(JOBS / name), "--launcher", launcher, "-o", str(tmp_path)])
        refused = "not on launcher" in capsys.readouterr().err
        assert (code, refused) in ((0, False), (64, True)), launcher
        taken += [launcher] if code == 0 else []
    assert len(taken) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_an_example_trains_here(name: str, tmp_path: Path) -> None:
    settings = [*TRAINED[name], "trainer.steps=3", "trainer.epochs=", "trainer.log=json"]
    if "fine-tune" in name:
        settings.append(f"trainer.init={resnet_weights(tmp_path)}")
    pairs = [part for setting in settings for part in ("--set", setting)]
    assert main([str(JOBS / name), *pairs, "--launcher", "local", "-o", str(tmp_path)]) == 0
    environment = {"TRAINER_OUT": str(tmp_path / "run"), "PYTHON": sys.executable}
    environment["PYTHONPATH"] = f"{ROOT}:{JOBS}"
    if "image-folder" in name or "fine-tune" in name or "own-model" in name:
        environment["TRAINER_DATA"] = str(photos(tmp_path / "photos"))
    ended = run_command(["sh", tmp_path / "local.sh"], folder=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert (summary["event"], summary["steps"]) == ("summary", 3)
    if "fine-tune" in name:
        events = [json.loads(line) for line in ended.stdout.splitlines()]
        assert [event["top5"] for event in events if event["event"] == "eval"] == [
            1.0
        ]  # of 3 classes
        first, after = torch.load(tmp_path / "resnet18.pth"), weights(tmp_path / "run")
        frozen = {
            name for name in dict(resnet18().named_parameters()) if after[name].equal(first[name])
        }
        assert {name.partition(".")[0] for name in frozen} == {"conv1", "bn1", "layer1"}
        assert after["fc.weight"].shape == (3, 512)


def test_the_fine_tuned_head_has_a_rate_of_its_own_and_norms_do_not_decay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(JOBS / "fine_tune")
    written = {"TASK": "photos:Photos", "DATA": str(photos(tmp_path)), "IMAGE_SIZE": "32"}
    written |= {"LR": "0.1", "TASK_HEAD_RATE": "4"}
    task: Any = tasks.load(from_environment({f"TRAINER_{n}": text for n, text in written.items()}))
    head, flat, rest = task.parameter_groups(dict(resnet18().named_parameters()))
    assert head["lr"] == pytest.approx(0.4)
    assert "lr" not in flat | rest
    assert (flat["weight_decay"], "weight_decay" in rest) == (0.0, False)
    assert [len(group["params"]) for group in (head, flat, rest)] == [2, 40, 20]


def resnet_weights(folder: Path) -> Path:
    """Return a file as torchvision publishes it: a state dict for 1,000 classes."""
    torch.manual_seed(1)
    torch.save(resnet18().state_dict(), folder / "resnet18.pth")
    return folder / "resnet18.pth"
