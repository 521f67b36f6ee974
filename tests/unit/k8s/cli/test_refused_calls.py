"""Wrong options or files, and what a launcher lacks: refused in one line, and nothing is written."""

import sys
from pathlib import Path

import pytest

from k8s.cli import command
from tests.conftest import run_command
from tests.rendering import EXAMPLE, ROOT, refused, without

MATRIX = ROOT / "k8s" / "jobs" / "16-matrix.yaml"


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
        ([str(EXAMPLE), "--all"], "--all: makes several files; add -o DIR"),
        ([str(EXAMPLE), "--all", "--launcher", "job"], "--all: means every launcher"),
        ([str(EXAMPLE), "--diff", "none"], "--diff none: No such file or directory"),
        ([str(EXAMPLE), "--each"], "--each: makes several files; add -o DIR"),
        ([str(EXAMPLE), "--split"], "--split: makes several files; add -o DIR"),
        ([str(EXAMPLE), "--owner", ""], "--owner: is empty; give the uid of a job"),
        ([str(EXAMPLE), "--owner", "u", "--each", "-o", "b"], "--owner: is the uid of one object"),
        (
            [str(EXAMPLE), "--owner", "u", "--launcher", "job", "--launcher", "jobset", "-o", "b"],
            "--owner: is the uid of one object",
        ),
        (
            [str(MATRIX), "--owner", "u", "-o", "b"],
            "--owner: is the uid of one object; render one job",
        ),
        (
            [str(EXAMPLE), "--each", "--diff", "a", "-o", "b"],
            "--diff: compares one job with one file",
        ),
        (
            [str(EXAMPLE), "--profile", "gke"],
            "--profile gke: no such profile; choose aks-ndv5, eks",
        ),
        (["--migrate", "none.yaml"], "--migrate none.yaml: No such file or directory"),
        (
            ["--migrate", str(EXAMPLE)],
            "has 0 of these objects, must have one: Job of batch/v1 or JobSet of ",
        ),
        (
            [str(EXAMPLE), "--launcher", "job", "--launcher", "jobset", "--diff", str(EXAMPLE)],
            "--diff: compares with one launcher's file",
        ),
        (["--explain", "schedulin"], "--explain schedulin: no such key; did you mean scheduling?"),
        (["--explain", "env[0].valu"], "no such key; did you mean env.value?"),
        (["--explain", "name.x"], "--explain name.x: no such key; there are no keys here"),
        (["--explain", ""], "--explain : no such key; choose name, namespace, launcher"),
        ([str(EXAMPLE), "--set", "nodes"], "--set 'nodes': must be KEY=VALUE"),
        ([str(EXAMPLE), "-o", f"{EXAMPLE}"], "-o "),
        ([str(EXAMPLE), "-o", f"{EXAMPLE}/below"], "-o "),
    ],
)
def test_a_command_line_that_cannot_work(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(arguments, tmp_path, capsys, out=False)


def test_a_job_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(EXAMPLE.read_bytes())
    arguments = [str(path), "--launcher", "local", "--launcher", "job", "-o", str(tmp_path)]
    assert f"would overwrite {path}; choose" in refused(arguments, tmp_path, capsys, out=False)
    assert path.read_bytes() == EXAMPLE.read_bytes()
    assert [*tmp_path.iterdir()] == [path]


def test_one_launcher_refused_is_all_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(EXAMPLE), "--launcher", "local", "--launcher", "job", "--set", "image="]
    assert "image: missing; launcher job" in refused(arguments, tmp_path, capsys)


@pytest.mark.parametrize(
    ("launcher", "setting", "says"),
    [
        (
            "local",
            "setup=[make]",
            "setup: not on launcher local; nothing runs on this machine before",
        ),
        (
            "docker",
            "code={git: 'https://h/a', revision: b}",
            "code: not on launcher docker; nothing is cloned",
        ),
        ("compose", "setup=[make]", "setup: not on launcher compose"),
        ("trainjob", "nodes={min: 1, max: 2}", "nodes.min=1: not on launcher trainjob; Kubeflow"),
        ("trainjob", "appWrapper=true", "appWrapper=True: not on launcher trainjob"),
        (
            "trainjob",
            "scheduling={gang: true, gangTimeout: 9, schedulerName: volcano}",
            "scheduling.gangTimeout=9: scheduler volcano has its own setting for this",
        ),
        (
            "job",
            "scheduling={gang: true, schedulerName: volcano}",
            "scheduling.schedulerName='volcano': Volcano reads only its own",
        ),
        (
            "jobset",
            "scheduling={gang: true, schedulerName: volcano}",
            "scheduling.schedulerName='volcano': Volcano reads only its own",
        ),
        (
            "volcano",
            "scheduling={gang: true, gangTimeout: 9}",
            "scheduling.gangTimeout=9: not on launcher volcano",
        ),
        ("volcano", "appWrapper=true", "appWrapper=True: not on launcher volcano"),
        (
            "jobset",
            "faults.cleanPodPolicy=All",
            "faults.cleanPodPolicy='All': not on launcher jobset",
        ),
        (
            "trainjob",
            "faults.ttl=0",
            "faults.ttl=0: not on launcher trainjob; a TrainJob has no ttl",
        ),
        (
            "job",
            "scheduling.exclusiveTopology=a",
            "scheduling.exclusiveTopology='a': not on launcher job",
        ),
        (
            "pytorchjob",
            "scheduling.exclusiveTopology=a",
            "scheduling.exclusiveTopology='a': not on",
        ),
        (
            "volcano",
            "scheduling={queue: a, priority: b}",
            "scheduling.priority='b': not on launcher v",
        ),
        (
            "volcano",
            "scheduling={queue: a, topology: {required: b}}",
            "scheduling.topology: not on",
        ),
        ("volcano", "scheduling.exclusiveTopology=a", "scheduling.exclusiveTopology='a': not on"),
        (
            "volcano",
            "faults.suspend=true",
            "faults.suspend=True: not on launcher volcano; a Volcano",
        ),
        ("volcano", "faults.deadline=60", "faults.deadline=60: not on launcher volcano; a Volcano"),
    ],
)
def test_what_a_launcher_lacks(
    launcher: str, setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_it = [p for key in without(launcher, EXAMPLE) for p in ("--set", key)]
    arguments = [str(EXAMPLE), "--launcher", launcher, *without_it, "--set", setting]
    assert f"--set: {says}" in refused(arguments, tmp_path, capsys)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ["resources.gpu=1", "resources.gpuResource=amd.com/gpu"],
            "docker supports NVIDIA GPUs only",
        ),
        (["data.hostPath=/a,b"], "data.hostPath='/a,b': docker cannot mount a path with a comma"),
        (['checkpoints.hostPath=/a"b'], "checkpoints.hostPath='/a\"b': docker cannot mount a path"),
        (
            ["trainer.out=/out/a,b"],
            "trainer.out='/out/a,b': docker cannot mount a path with a comma",
        ),
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
    words = [str(ROOT / "render.py"), "job.yaml", "-o", "written"]
    done = run_command([sys.executable, *words], folder=tmp_path)
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.startswith(f"render.py: {says}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "written").exists()
