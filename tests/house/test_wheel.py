"""The wheel in a separate environment, outside the clone: its contents, and the command `muster`."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from k8s.muster import COMMANDS
from tests.conftest import ROOT, clean_environment
from tests.house.pages import fenced, read

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def muster(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Install the wheel of these files; return a function that runs `muster` in an empty folder.

    It uses the packages of this environment.
    """
    tmp = tmp_path_factory.mktemp("wheel")
    files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(files, cwd=ROOT, text=True).strip("\0").split("\0"):
        if name.startswith(("k8s/", "trainer/")) or "/" not in name:
            (tmp / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp / "clone" / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp], cwd=tmp / "clone", check=True)
    (wheel,) = tmp.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp / "env"], check=True)
    python = tmp / "env/bin/python"
    install = [
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([sys.executable, *install, wheel], check=True)
    (packages,) = (tmp / "env/lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    folder = tmp / "empty"
    folder.mkdir()

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        environment = clean_environment(**env)
        environment.pop("PYTHONPATH")
        return subprocess.run(
            [tmp / "env/bin/muster", *arguments],
            cwd=folder,
            env=environment,
            text=True,
            capture_output=True,
            timeout=200,
            check=False,
        )

    return run


def test_a_job_file_is_rendered_as_in_the_clone(muster: Run) -> None:
    example = str(ROOT / "k8s/jobs/02-digits-ddp.yaml")
    for launcher in ("job", "compose", "local"):
        here = [sys.executable, str(ROOT / "render.py"), example, "--launcher", launcher]
        expected = subprocess.check_output(here, text=True)
        assert muster("render", example, "--launcher", launcher).stdout == expected
    own_script = str(ROOT / "k8s/jobs/13-own-script.yaml")  # the job carries the launcher
    assert "launch.pyz" in muster("render", own_script).stdout
    assert muster("render", example, "--profile", "eks-p5-efa", "--check").returncode == 0


def test_a_task_in_the_current_folder_is_trained(muster: Run, tmp_path: Path) -> None:
    (code,) = (text for text in fenced(read(ROOT / "README.md"), "python") if "Circles" in text)
    folder = Path(muster("launch", "--", "pwd").stdout.splitlines()[-1])
    (folder / "circles.py").write_text(code)
    settings = {"TRAINER_TASK": "circles:Circles", "TRAINER_STEPS": "12", "TRAINER_LOG": "json"}
    for command, ranks in (("train", 1), ("launch", 2)):
        out = str(tmp_path / command)
        ended = muster(command, TRAINER_OUT=out, PET_NPROC_PER_NODE=str(ranks), **settings)
        assert ended.returncode == 0, ended.stderr
        events = [json.loads(line) for line in ended.stdout.splitlines()]
        assert events[-1]["event"] == "summary"
        assert (events[-1]["steps"], events[-1]["world_size"]) == (12, ranks)


def test_a_folder_with_a_trainer_of_its_own(muster: Run) -> None:
    own = Path(muster("launch", "--", "pwd").stdout.splitlines()[-1]) / "trainer.py"
    own.write_text("raise SystemExit('this is not the trainer')")
    example = str(ROOT / "k8s/jobs/02-digits-ddp.yaml")
    for arguments in (
        ["launch", "--", "true"],
        ["train", "--help"],
        ["render", example, "--check"],
    ):
        ended = muster(*arguments)
        assert ended.returncode == 0, ended.stderr
    own.unlink()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 0, "usage: muster COMMAND"),
        (["train", "--help"], 0, "TRAINER_GLOBAL_BATCH"),
        (["submit", "--help"], 0, "Usage: muster submit"),
        (["status", "none"], 64, "no cluster"),
        (["render", "none.yaml"], 64, "render.py: none.yaml"),
        (["nonsense"], 64, "No such command 'nonsense'"),
        (["launch", "--", "sh", "-c", "exit 7"], 70, "exit 7"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_commands(muster: Run, arguments: list[str], code: int, says: str) -> None:
    ended = muster(*arguments, KUBECONFIG=os.devnull)
    assert ended.returncode == code, ended.stderr
    assert says in ended.stdout + ended.stderr


def test_help_names_every_command(muster: Run) -> None:
    said = muster("--help").stdout
    for name in (*COMMANDS, "submit", "status", "logs", "doctor"):
        assert f" {name} " in said
    for name in COMMANDS:
        assert muster(name, "--help").returncode == 0
