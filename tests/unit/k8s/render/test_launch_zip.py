"""The launcher as one file: the same bytes every time, small, and complete without packages."""

import ast
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from k8s.render import launch_zip
from tests.conftest import ROOT, clean_environment, run_command

LIMIT = 100 * 1024


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    path = tmp_path / "launch.pyz"
    path.write_bytes(launch_zip.build())
    return path


def test_it_is_small() -> None:
    assert len(launch_zip.build()) < LIMIT


def test_another_process_builds_the_same(tmp_path: Path) -> None:
    code = "import sys; from k8s.render.launch_zip import build; sys.stdout.buffer.write(build())"
    for seed in ("0", "1"):
        made = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=clean_environment(PYTHONHASHSEED=seed, TZ=f"UTC+{seed}"),
            capture_output=True,
            check=True,
        )
        assert made.stdout == launch_zip.build()


def test_it_holds_what_the_launcher_imports_and_nothing_of_the_trainers_own(launcher: Path) -> None:
    with zipfile.ZipFile(launcher) as opened:
        names = set(opened.namelist())
        texts = {name: opened.read(name) for name in names}
    assert {"__main__.py", "trainer/launch.py", "trainer/health.py"} <= names
    for folder in ("launcher", "rendezvous"):
        own = {f"trainer/{folder}/{path.name}" for path in (ROOT / "trainer" / folder).glob("*.py")}
        # forking.py runs only with torch
        assert own - {"trainer/launcher/forking.py"} <= names
    assert not [name for name in names if name.startswith(("trainer/engine", "trainer/strategies"))]
    packages = {"torch", "pydantic", "numpy", "rich", "yaml"}
    for name, text in texts.items():
        top = [node for node in ast.parse(text).body if isinstance(node, ast.Import)]
        assert not packages & {one.name for node in top for one in node.names}, name


def run(launcher: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with Python only: no site packages, no environment, another folder."""
    return run_command([sys.executable, "-I", "-S", *arguments], folder=launcher.parent)


def test_it_runs_alone(launcher: Path) -> None:
    shown = run(launcher, str(launcher), "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "PET_NNODES" in shown.stdout
    wrong = run(launcher, str(launcher), "none.py")
    assert wrong.returncode == 64
    assert "none.py: no such script" in wrong.stderr


@pytest.mark.parametrize(
    ("of_image", "wanted"), [("/opt/a:/opt/b", "/code:/opt/a:/opt/b"), ("", "/code")]
)
def test_the_code_stands_before_the_images_own_path(
    of_image: str, wanted: str, launcher: Path
) -> None:
    code = "import os; print(os.environ['PYTHONPATH'], os.environ.get('MUSTER_PYTHONPATH'))"
    done = run_command(
        [sys.executable, str(launcher), "--", sys.executable, "-c", code],
        folder=launcher.parent,
        env={"PYTHONPATH": of_image, "MUSTER_PYTHONPATH": "/code", "PET_NPROC_PER_NODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"{wanted} None")


def test_every_module_in_it_can_be_imported_alone(launcher: Path) -> None:
    with zipfile.ZipFile(launcher) as opened:
        names = [name for name in opened.namelist() if name.startswith("trainer/")]
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names
    ]
    code = f"import sys; sys.path.insert(0, {str(launcher)!r})\n"
    code += "\n".join(f"import {module}" for module in modules)
    code += f"\nassert not [p for p in sys.path if p.startswith({sysconfig.get_path('purelib')!r})]"
    done = run(launcher, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
