"""`make setup` on machines that lack something."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_command


def make_setup(folder: Path, *, python: str) -> subprocess.CompletedProcess[str]:
    """Run `make setup` in a folder with the rule, without the packages."""
    (folder / "docker").mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("requirements-dev.txt", "requirements-uv.txt"):
        (folder / "docker" / name).write_text("")
    install = folder / "docker" / "install.sh"
    install.write_text("#!/bin/sh\n")
    install.chmod(0o755)
    return run_command(["make", "setup", f"PYTHON={python}"], folder=folder, timeout=120)


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    ended = make_setup(tmp_path, python=str(old))
    assert ended.returncode == 2
    assert f"{old} is older than Python 3.11; try make PYTHON=python3.12" in ended.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.slow
def test_an_environment_without_pip_is_completed(tmp_path: Path) -> None:
    """Debian leaves one if the package python3-venv was missing."""
    python = sys.executable
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    ended = make_setup(tmp_path, python=python)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / ".venv" / ".stamp").read_text() == "locked\n"
