"""What cannot work is refused in one line that names the place, with exit 64 and nothing written."""

# ruff: noqa: E501  # the table reads better with a case a line

import os
import subprocess
import sys
from pathlib import Path

import pytest

from k8s import command
from tests.rendering import EXAMPLE, ROOT

LONG = "a" * 64

# What is set on the example job, and what its refusal says, key first.
SETTINGS = [
    # the list
    (["resources.gpus=2"], "resources.gpus: no such key; did you mean resources.gpu?"),
    (["colour=red"], "colour: no such key; choose name, namespace, launcher"),
    (["trainer.mode=dpp"], "trainer.mode='dpp': no such mode; choose auto, single, ddp"),
    ([f"name={LONG}"], f"name='{LONG}': makes the name {LONG}-0, 66 characters where 63 are allowed; a job name of at most 61 would do"),
    (["name=Digits"], "name='Digits': must be lower-case letters, digits and '-', start with a letter and not end with '-'; digits would do"),
    (["resources.gpu=8", "procsPerNode=9"], "procsPerNode=9: more ranks than the 8 of resources.gpu"),
    (["trainer.globalBatch=65"], "trainer.globalBatch=65: does not divide over 2 data-parallel ranks; 64 or 66 would"),
    (["trainer.globalBatch=64", "trainer.microBatch=5"], "trainer.microBatch=5: does not divide the 32 samples"),
    (["resources.memory=128Mi"], "resources.memory='128Mi': must be more than resources.shm, 256Mi, which is counted in it; 512Mi would do"),
    (["resources.memory=256Mi"], "resources.memory='256Mi': must be more than resources.shm"),
    (["resources.memory=2GB"], "resources.memory='2GB': not a quantity; for GB write G or Gi"),
    (["resources.memory=512m"], "resources.memory='512m': must be a whole number of bytes"),
    (["resources.cpu=-1"], "resources.cpu='-1': must be at least 1m"),
    (["env=[{name: A, value: x}, {name: A, value: y}]"], "env[1].name='A': given twice, first in env[0]"),
    (["nodes=0"], "nodes=0: must be at least 1"),
    (["trainer.mesh=dp_replicate=4"], "trainer.mesh='dp_replicate=4': multiplies to 4, but the world size is 2; dp_replicate=2 would do"),
    # types
    (["nodes='2'"], "nodes='2': must be a whole number"),
    (["nodes=2.0"], "nodes=2.0: must be a whole number"),
    (["nodes=yes"], "nodes=True: must be a whole number"),
    (["nodes=[2]"], "nodes=[2]: must be a whole number"),
    (["resources=8"], "resources=8: must be a mapping"),
    (["env={A: x}"], "env={'A': 'x'}: must be a list"),
    (["env=[A]"], "env[0]='A': must be a mapping"),
    (["env=[{name: A, value: 1}]"], "env[0].value=1: must be text; write it in quotes"),
    (["env=[{name: A}]"], "env[0].value: missing"),
    (["name="], "name: missing"),
    (["trainer.lr=[0.1]"], "trainer.lr=[0.1]: must be one value: text, a number, true or false"),
    (["trainer.lr={a: b}"], "trainer.lr={'a': 'b'}: must be one value"),
    (["annotations.a=1"], "annotations.a=1: must be text"),
    # the trainer's settings
    (["trainer.golbalBatch=64"], "trainer.golbalBatch: no such setting; did you mean trainer.globalBatch?"),
    (["trainer.global_batch=64"], "trainer.global_batch: no such setting; did you mean trainer.globalBatch?"),
    (["trainer.GlobalBatch=64"], "trainer.GlobalBatch: no such setting; did you mean trainer.globalBatch?"),
    (["trainer.lr=-1"], "trainer.lr='-1': must be greater than 0"),
    (["trainer.lr=.inf"], "trainer.lr='inf': must be a finite number"),
    (["trainer.epochs=1.5"], "trainer.epochs='1.5': must be a valid integer"),
    (["trainer.task=digit"], "trainer.task='digit': no such task; choose digits"),
    (["trainer.mode=single"], "trainer.mode='single': runs in one process, but there are 2 ranks"),
    (["trainer.out=runs/x"], "trainer.out='runs/x': must be within /out"),
    (["trainer.out=/outside"], "trainer.out='/outside': must be within /out"),
    (["trainer.data=/elsewhere", "data.pvc=d"], "trainer.data='/elsewhere': must be within /data"),
    # names
    (["name=1st"], "name='1st': must be lower-case letters"),
    (["name=a-"], "name='a-': must be lower-case letters"),
    (["name=a.b"], "name='a.b': must be lower-case letters, digits and '-', start with a letter and not end with '-'; a-b would do"),
    ([f"name={LONG[:62]}"], f"name='{LONG[:62]}': makes the name {LONG[:62]}-0, 64 characters where 63 are allowed; a job name of at most 61 would do"),
    ([f"name={LONG[:60]}", "nodes=512", "trainer.globalBatch=512"], f"name='{LONG[:60]}': makes the name {LONG[:60]}-511, 64 characters where 63 are allowed; a job name of at most 59 would do"),
    (["namespace=Team"], "namespace='Team': must be at most 63 lower-case letters"),
    (["image=a b"], "image='a b': not an image reference"),
    (["image=--privileged"], "image='--privileged': not an image reference"),
    (["image="], "image: missing; launcher job runs it"),
    (["launcher=slurm"], "launcher='slurm': no such launcher; choose docker, job, local, pytorchjob"),
    (["launcher=../job"], "launcher='../job': no such launcher"),
    (["resources.gpu=1", "resources.gpuResource=gpu"], "resources.gpuResource='gpu': must be the name of an extended resource"),
    (["resources.gpuResource=kubernetes.io/gpu"], "resources.gpuResource='kubernetes.io/gpu': must be"),
    (["labels[a b]=x"], "labels.a b='a b': must be [domain/]name"),
    (["labels.team=a b"], "labels.team='a b': must be at most 63"),
    (["labels[app.kubernetes.io/name]=x"], "labels.app.kubernetes.io/name: set by muster"),
    (["labels[batch.kubernetes.io/job-name]=x"], "labels.batch.kubernetes.io/job-name: set by muster"),
    # variables that are set elsewhere
    (["env=[{name: PET_NNODES, value: x}]"], "env[0].name='PET_NNODES': not for env; set nodes"),
    (["env=[{name: PET_RDZV_ID, value: x}]"], "env[0].name='PET_RDZV_ID': not for env; the launcher sets it"),
    (["env=[{name: TRAINER_GLOBAL_BATCH, value: x}]"], "env[0].name='TRAINER_GLOBAL_BATCH': not for env; set trainer.globalBatch"),
    (["env=[{name: WORLD_SIZE, value: x}]"], "env[0].name='WORLD_SIZE': not for env; set nodes"),
    (["env=[{name: RANK, value: x}]"], "env[0].name='RANK': not for env"),
    (["env=[{name: MASTER_ADDR, value: x}]"], "env[0].name='MASTER_ADDR': not for env"),
    (["env=[{name: a-b, value: x}]"], "env[0].name='a-b': must be letters, digits and '_'"),
    (["env=[{name: 'A=B', value: x}]"], "env[0].name='A=B': must be letters, digits and '_'"),
    # volumes
    (["data.pvc=d", "data.hostPath=/d"], "data: must have exactly one of pvc, hostPath; has pvc, hostPath"),
    (["data={}"], "data: must have exactly one of pvc, hostPath; has none"),
    (["data.emptyDir=1Gi"], "data.emptyDir: no such key; choose pvc, hostPath"),
    (["checkpoints.pvc=Claim"], "checkpoints.pvc='Claim': must be at most 253 lower-case"),
    (["checkpoints.hostPath=ckpt"], "checkpoints.hostPath='ckpt': must be an absolute path"),
    (["checkpoints.hostPath=/a/../b"], "checkpoints.hostPath='/a/../b': must be an absolute path"),
    (["checkpoints.emptyDir=0"], "checkpoints.emptyDir='0': must be more than 0"),
    # faults
    (["faults.gracePeriod=10"], "faults.gracePeriod=10: the entrypoint needs 10 s of it"),
    (["faults.maxRestarts=-1"], "faults.maxRestarts=-1: must be at least 0"),
    (["faults.deadline=0"], "faults.deadline=0: must be at least 1"),
    (["faults.deadline=1h"], "faults.deadline='1h': must be a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "says"), SETTINGS, ids=lambda value: str(value)[:50])
def test_a_setting_that_cannot_work(
    settings: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(
        [str(EXAMPLE), *(part for s in settings for part in ("--set", s))], tmp_path, capsys
    )
    place = line.removeprefix("render.py: ").removeprefix("--set: ").removeprefix(f"{EXAMPLE}: ")
    assert place.startswith(says)


def refused(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str], *, out: bool = True
) -> str:
    """Run the command in this process, see that it refuses, and return the line it says."""
    target = folder / "written"
    code = command.main([*arguments, "-o", str(target)] if out else arguments)
    seen = capsys.readouterr()
    assert code == 64
    assert seen.out == ""
    assert seen.err.count("\n") == 1, seen.err
    assert seen.err.startswith("render.py: ")
    assert not target.exists()
    return seen.err.strip()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no job file; e.g."),
        (["none.yaml"], "none.yaml: No such file or directory"),
        ([str(EXAMPLE), "--bogus"], "unrecognized arguments: --bogus; --help shows how"),
        ([str(EXAMPLE), "--laun", "job"], "unrecognized arguments"),
        ([str(EXAMPLE), "--launcher"], "expected one argument"),
        (
            [str(EXAMPLE), "--launcher", "slurm"],
            "--launcher: launcher='slurm': no such launcher; choose",
        ),
        ([str(EXAMPLE), "--launcher", "job", "--launcher", "local"], "add -o DIR"),
        ([str(EXAMPLE), "--json"], "--json: goes with --plan"),
        ([str(EXAMPLE), "--set", "nodes"], "--set 'nodes': must be KEY=VALUE"),
        ([str(EXAMPLE), "-o", f"{EXAMPLE}"], "-o "),
        ([str(EXAMPLE), "-o", f"{EXAMPLE}/below"], "-o "),
    ],
)
def test_a_command_line_that_cannot_work(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(arguments, tmp_path, capsys, out=False)


def test_one_launcher_refused_is_all_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(EXAMPLE), "--launcher", "local", "--launcher", "job", "--set", "image="]
    assert "image: missing; launcher job" in refused(arguments, tmp_path, capsys)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ["resources.gpu=1", "resources.gpuResource=amd.com/gpu"],
            "docker hands out NVIDIA GPUs only",
        ),
        (["data.hostPath=/a,b"], "data.hostPath='/a,b': docker mounts no path with a comma"),
        (['checkpoints.hostPath=/a"b'], "checkpoints.hostPath='/a\"b': docker mounts no path"),
    ],
)
def test_what_docker_cannot(
    settings: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [part for setting in settings for part in ("--set", setting)]
    assert says in refused([str(EXAMPLE), "--launcher", "docker", *sets], tmp_path, capsys)


def test_a_key_with_a_line_end_still_makes_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text('{name: a, "b\\nc": 1}')
    assert "b\\nc: no such key" in refused([str(path)], tmp_path, capsys)


def test_the_file_at_fault_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("{name: a, image: b, nodes: 0, trainer: {lr: 0.1}}")
    second.write_text("{trainer: {epochs: 3}}")
    assert f"render.py: {first}: nodes=0" in refused([str(first), str(second)], tmp_path, capsys)
    second.write_text("{nodes: -1}")
    assert f"render.py: {second}: nodes=-1" in refused([str(first), str(second)], tmp_path, capsys)


def test_an_earlier_file_stays_when_a_later_one_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(EXAMPLE), "--launcher", "job", "--launcher", "local", "-o", str(tmp_path)]
    assert command.main(arguments) == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert sorted(before) == ["job.yaml", "local.sh"]
    capsys.readouterr()
    assert command.main([*arguments, "--set", "nodes=0"]) == 64
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: a\nnodes: [1\n", "job.yaml:3:1: not YAML: "),
        ("name: a\nimage: b\nnodes: 0\n", "job.yaml: nodes=0: must be at least 1"),
    ],
)
def test_as_a_process(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, str(ROOT / "render.py"), "job.yaml", "-o", "written"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.startswith(f"render.py: {says}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "written").exists()
