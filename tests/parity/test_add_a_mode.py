"""The recipe for a mode in trainer/README.md: one file, one row, and it is used like the others."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, run_command
from tests.house import pages
from tests.parity.compare import differences
from tests.parity.table import COMMON, TOLERANCE

pytestmark = pytest.mark.slow

FILE, ROW, _ = (code for _, code in pages.recipe("trainer/README.md", "Add a mode"))
SETTINGS = COMMON | {"task": "digits", "precision": "fp64", "log": "json", "log_steps": "1"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the code with one file and one row more."""
    folder = tmp_path_factory.mktemp("tree")
    for package in ("trainer", "k8s"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    shutil.copy(ROOT / "render.py", folder)
    (folder / "trainer/strategies/all_reduce.py").write_text(FILE, encoding="utf-8")
    modes = folder / "trainer/config/modes.py"
    begin = "MODES: dict[str, Mode] = {\n"
    text = modes.read_text(encoding="utf-8")
    assert text.count(begin) == 1
    modes.write_text(text.replace(begin, begin + ROW), encoding="utf-8")
    return folder


def start(
    tree: Path, *arguments: str, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = run_command(
        [sys.executable, *arguments],
        folder=tree,
        env=environment | {"PYTHONPATH": str(tree)},
        timeout=240,
    )
    assert done.returncode == code, done.stderr
    return done


def events(tree: Path, *arguments: str, ranks: int = 1, **settings: Any) -> list[dict[str, Any]]:
    variables = {f"TRAINER_{name.upper()}": value for name, value in (SETTINGS | settings).items()}
    done = start(tree, *arguments, PET_NPROC_PER_NODE=str(ranks), **variables)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_trains_on_two_ranks_as_one_process_does(tree: Path) -> None:
    runs = []
    for mode, ranks in (("single", 1), ("all-reduce", 2)):
        out = tree / mode
        found = events(tree, "-m", "trainer.launch", ranks=ranks, mode=mode, out=str(out))
        assert found[0]["mode"] == mode
        runs.append((out, found))
    assert max(differences(*runs).values()) < TOLERANCE["fp64"]


def test_the_dry_run_sizes_it(tree: Path) -> None:
    out = str(tree / "dry")
    (need,) = events(tree, "-m", "trainer", mode="all-reduce", out=out, dry_run="4")
    assert need["mode"] == "all-reduce"
    assert need["sent"]["all_reduce"] == pytest.approx(1.5 * need["gradients"], rel=0.01)


def test_the_renderer_knows_it_and_what_it_refuses(tree: Path) -> None:
    job = ("k8s/jobs/02-digits-ddp.yaml", "--set", "trainer.mode=all-reduce", "--check")
    assert "ok for" in start(tree, "render.py", *job).stdout
    refused = start(tree, "render.py", *job, "--set", "trainer.syncBatchnorm=true", code=64)
    assert "trainer.syncBatchnorm=true: not with mode all-reduce: this example" in refused.stderr
