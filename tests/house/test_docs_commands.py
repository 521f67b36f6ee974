"""Every command on every page is run here, or is in a table with the reason why not."""

import os
import re
import shutil
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import typer

from k8s.cli.verbs import app
from tests.conftest import ROOT, run_command
from tests.house import pages

_CLUSTER = "needs a cluster; tests/unit/k8s/cluster and tests/cluster run the verbs"
_ENGINE = "needs a container engine; tests/image builds and runs the image"
_MINUTES = "takes minutes, or is the test suite itself; CI runs it"
_NETWORK = "needs the network"

# A line that matches one of these is not run.
NOT_RUN = {
    r"^git clone ": _NETWORK,
    r"^make (lock|audit)\b": _NETWORK,
    r"^cosign ": "needs a published image",
    r"^make (test|lint|coverage)": _MINUTES,
    r"^make bench(-growth)?( |$)": "takes minutes; tests/bench/test_bench.py has contenders take turns",
    r"^make (bench-peers|torchx)": _NETWORK,
    r"^make (bench-gpu|gpu-check)": "needs a GPU; tests/bench/test_gpu_rows.py tries it without",
    r"-m pytest ": _MINUTES,
    r"^python -m tests\.goldens": "writes into the tree; tests/unit/k8s/render compares the goldens",
    r"-m tests.house.planted_faults": _MINUTES,
    r"-m trainer\.launch .* (train\.py|my\.package)": "tests/frameworks starts five such scripts",
    r"-m trainer\.report .*--serve": "serves until Ctrl-C; tests/report/test_serve.py runs it",
    r"^muster ": "tests/house/test_wheel.py installs and runs it",
    r"^make fuzz": "takes minutes; tests/fuzz/test_fuzz.py feeds every target a few inputs",
    r"^make soak": "takes minutes; tests/faults/test_soak.py runs half of one",
    r"^make (image|docker-run|compose-run)\b": _ENGINE,
    r"\bdocker (build|run)\b": _ENGINE,
    r"^make kind-|^kind create": _CLUSTER,
    r"\bkubectl\b": _CLUSTER,
    r"^m (?!--help)": _CLUSTER,
    r"-m k8s (profile|status|submit|sync|why)": _CLUSTER,
    r"-m trainer\.preflight": "tests/faults/test_preflight.py runs both",
    r"^TRAINER_TASK=circles": "tests/house/test_readme.py trains it",
    r"^TRAINER_MODE=(mp|pp)": "tests/parity/test_table.py trains each of these modes and meshes",
    r"^make run JOB=\S*matrix": "takes minutes; tests/report/test_matrix.py runs two of its jobs",
    r"^make run JOB=": "is make run, with the job file that it has without JOB",
    r"-m trainer\.runs build/": "tests/report/test_matrix.py lists the runs of a matrix",
    r"TRAINER_DRY_RUN=1024": "takes a minute; tests/parity/test_dry_run.py runs dry runs",
}

# Replacements for commands that take long or cannot run here.
SHORTER = {
    "make run": "make run SET=trainer.steps=20",
    "TRAINER_TASK=tokens TRAINER_STEPS=20": "TRAINER_TASK=tokens TRAINER_STEPS=3",
    "step-00001348": "step-00000003",
    ". .venv/bin/activate": ":",
}

# Lines whose exit code is not 0, as their page says.
CODES = {"--diff": 1}

_FEW = 5  # commands that take a moment each
_SLOW = re.compile(r"torchrun|-m trainer|make run|make sbom|--plan")  # they import torch


def _bare(line: str) -> str:
    return line.partition(" #")[0].strip()


def _cases() -> list[Any]:
    """Return the lines of each block to run; a line that starts ranks is run once."""
    cases, seen = [], set()
    for block in pages.blocks():
        lines = [_bare(line) for line in block.lines]
        run = [line for line in lines if not any(re.search(one, line) for one in NOT_RUN)]
        run = [line for line in run if line not in seen]
        slow = {line for line in run if _SLOW.search(line)}
        seen |= slow
        if run:
            marks = [pytest.mark.slow] if slow or len(run) > _FEW else []
            cases.append(pytest.param(block, run, id=str(block), marks=marks))
    return cases


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder that looks like the repository; files are written only there."""
    for name in ("Makefile", "pyproject.toml", "render.py", "k8s", "trainer", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        (tmp_path / ".venv" / part.name).symlink_to(part)
    # Make must install nothing into this environment, because its packages may be chosen: the stamp
    # exists and is newer than the locks.
    if not (tmp_path / ".venv/.stamp").exists():
        (tmp_path / ".venv/.stamp").write_text("locked\n")
    shutil.copytree(ROOT / "docker", tmp_path / "docker")
    for file in (tmp_path / "docker").iterdir():
        os.utime(file, (0, 0))
    return tmp_path


def _run(tree: Path, commands: list[str], **env: str) -> None:
    """Run the lines in one shell; a line with an unexpected exit code ends the shell."""
    script = ["shopt -s expand_aliases"]
    for line in commands:
        command = reduce(lambda text, pair: text.replace(*pair), SHORTER.items(), line)
        code = next((code for part, code in CODES.items() if part in command), 0)
        script += [command, f"[ $? = {code} ] || {{ echo LINE: {command!r} >&2; exit 99; }}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    bounded = {"TRAINER_STEPS": "3", "PATH": path, "MAKEFLAGS": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_command(["bash", "-c", "\n".join(script)], folder=tree, env=bounded | env)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize(("block", "commands"), _cases())
def test_every_command_works(tree: Path, block: pages.Block, commands: list[str]) -> None:
    if block.page == "trainer/CHECKPOINTS.md":  # exports a checkpoint of a run
        _run(tree, ["python -m trainer"])
    if any("counts.py" in line for line in commands):  # the page's own
        shown = pages.fenced(pages.read(ROOT / block.page), "python")
        script = next(text for text in shown if "# counts.py" in text)
        (tree / "counts.py").write_text(script, encoding="utf-8")
    if any("build/digits-gpu/" in line for line in commands):
        _run(tree, ["python render.py k8s/jobs/03-digits-gpu.yaml -o build/digits-gpu"])
    _run(tree, commands)


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


def test_every_verb_shown_has_the_options_shown() -> None:
    shown = 0
    command: Any = typer.main.get_command(app)
    for block in pages.blocks():
        for line in map(_bare, block.lines):
            for verb, rest in re.findall(r"^(?:m|.*-m k8s) ([a-z]+(?:-[a-z]+)*)([^;|]*)", line):
                known = {one for param in command.commands[verb].params for one in param.opts}
                assert set(re.findall(r" (--?[a-z][a-z-]*)", rest)) <= known, line
                shown += 1
    assert shown > 10
