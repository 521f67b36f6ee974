"""Every command on every page is run here, or stands in one table with the reason why not."""

import os
import re
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environment
from tests.house import pages

_CLUSTER = "needs a cluster; tests/unit/k8s/cluster and tests/cluster run the verbs"
_ENGINE = "needs a container engine; tests/image builds and runs the image"
_MINUTES = "takes minutes, or is the test suite itself; CI runs it"
_NETWORK = "needs the network"

# A line that one of these finds is not run.
NOT_RUN = {
    r"^git clone ": _NETWORK,
    r"^make (lock|audit)\b": _NETWORK,
    r"^make (test|lint)": _MINUTES,
    r"-m pytest ": _MINUTES,
    r"^python -m tests\.goldens": "writes into the tree; tests/unit/k8s/render compares the goldens",
    r"^make soak": "takes minutes; tests/faults/test_soak.py runs one of them",
    r"^make (image|docker-run|compose-run)\b": _ENGINE,
    r"\bdocker (build|run)\b": _ENGINE,
    r"^make kind-|^kind create": _CLUSTER,
    r"\bkubectl\b": _CLUSTER,
    r"^m (?!--help)": _CLUSTER,
    r"-m k8s status": _CLUSTER,
    r"TRAINER_DRY_RUN=1024": "takes a minute; tests/parity/test_dry_run.py runs dry runs",
}

# What stands in for a longer or another command, so that a test of it is short.
SHORTER = {
    "make run": "make run SET=trainer.steps=20",
    "step-00001348": "step-00000003",
    ". .venv/bin/activate": ":",
}

# A line that ends otherwise than with 0, as its page says.
CODES = {"--diff": 1}

_SLOW = re.compile(r"torchrun|-m trainer|make run|make sbom")


def _commands(block: pages.Block) -> list[str]:
    """Return the lines of a block that are run."""
    return [line for line in block.lines if not any(re.search(one, line) for one in NOT_RUN)]


def _cases() -> list[object]:
    runnable = [block for block in pages.blocks() if _commands(block)]
    slow = {
        block: any(map(_SLOW.search, _commands(block))) or len(_commands(block)) > 5
        for block in runnable
    }
    return [
        pytest.param(block, id=str(block), marks=[pytest.mark.slow] if slow[block] else [])
        for block in runnable
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder that looks like the repository; what is written stays there."""
    for name in ("Makefile", "pyproject.toml", "render.py", "k8s", "trainer", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    # Older than any stamp, so that make has nothing to install.
    shutil.copytree(ROOT / "docker", tmp_path / "docker")
    for file in (tmp_path / "docker").iterdir():
        os.utime(file, (0, 0))
    return tmp_path


def _run(tree: Path, commands: list[str], **env: str) -> None:
    """Run the lines in one shell; a line that ends unlike it should ends the shell."""
    script = ["shopt -s expand_aliases"]
    for line in commands:
        command = reduce(lambda text, pair: text.replace(*pair), SHORTER.items(), line)
        code = next((code for part, code in CODES.items() if part in command), 0)
        script += [command, f"[ $? = {code} ] || {{ echo LINE: {command!r} >&2; exit 99; }}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    bounded = {"TRAINER_STEPS": "3", "PATH": path, "MAKEFLAGS": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tree,
        env=clean_environment(**bounded | env),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("block", _cases())
def test_every_command_works(tree: Path, block: pages.Block) -> None:
    if block.page == "trainer/CHECKPOINTS.md":  # exports what a run has saved
        _run(tree, ["python -m trainer"])
    if "--migrate build/" in " ".join(block.lines) or "--diff build/" in " ".join(block.lines):
        _run(tree, ["python render.py k8s/jobs/digits-gpu.yaml -o build/digits-gpu"])
    if "circles" in " ".join(block.lines):
        (task,) = pages.fenced(pages.read(ROOT / block.page), "python")
        (tree / "circles.py").write_text(task, encoding="utf-8")
    _run(tree, _commands(block))


def test_every_entry_of_the_table_is_used() -> None:
    lines = [line for block in pages.blocks() for line in block.lines]
    assert len(lines) > 50
    for entry in NOT_RUN:
        assert [line for line in lines if re.search(entry, line)], entry


@pytest.mark.parametrize("page", pages.PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_hides_in_another_kind_of_block(page: Path) -> None:
    text = pages.read(page)
    assert pages.fenced(text, "bash") + pages.fenced(text, "shell") == []
    indented = r"^ {4}(?:python|make|torchrun|kubectl|docker) .*"
    assert re.findall(indented, pages.prose(text), re.MULTILINE) == []
