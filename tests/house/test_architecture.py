"""The house rules that a machine can check: who imports whom, and how long a file is."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environment

# The name of each contract in pyproject.toml, a file, and an import there that breaks it.
PLANTED = [
    ("k8s: from the job file", "k8s/base/names.py", "from k8s.plan import make"),
    (
        "trainer: from the settings",
        "trainer/plan/sizing.py",
        "from trainer.distributed import runtime",
    ),
    (
        "trainer: from the settings",
        "trainer/watch/stop.py",
        "if TYPE_CHECKING:\n    import trainer.engine.run",
    ),
    ("the renderer needs no torch", "k8s/cli/report.py", "def _():\n    import torch"),
    ("the renderer needs no torch", "k8s/plan/make.py", "from trainer.models import chain"),
    (
        "the launcher needs the standard",
        "trainer/launcher/ranks.py",
        "from trainer.config import settings",
    ),
    ("the launcher needs the standard", "trainer/rendezvous/client.py", "import numpy"),
    ("the trainer knows no cluster", "trainer/tools/reference.py", "import yaml"),
    ("the trainer knows no cluster", "trainer/engine/run.py", "from k8s.base import names"),
    ("no circle", "trainer/config/exits.py", "from trainer.config import settings, environment"),
    ("no circle", "k8s/jobfile/volumes.py", "def _():\n    from k8s.jobfile import spec"),
    ("no circle", "k8s/cluster/client/api.py", "from k8s.cluster.client import objects"),
]


def broken(root: Path) -> str:
    """Return what the contracts say of a copy of the code, nothing when all are kept."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return ended.stdout if ended.returncode else ""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for package in ("k8s", "trainer"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    assert broken(folder) == ""
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("contract", "file", "line"), PLANTED)
def test_an_import_against_a_contract_is_seen(
    house: Path, contract: str, file: str, line: str
) -> None:
    text = (house / file).read_text(encoding="utf-8")
    (house / file).write_text(f"{text}\n\n{line}\n", encoding="utf-8")
    try:
        said = broken(house)
    finally:
        (house / file).write_text(text, encoding="utf-8")
    assert [row for row in said.splitlines() if row.startswith(contract) and "BROKEN" in row], said


def test_what_is_shared_imports_no_torch() -> None:
    shared = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ("config", "plan")
        for path in sorted((ROOT / "trainer" / folder).glob("*.py"))
    ]
    code = f"import {', '.join(shared)}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_launcher_runs_on_the_standard_library_alone() -> None:
    """Every file of it, lazy imports of a start included, without any package installed."""
    files = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ("launcher", "rendezvous")
        for path in sorted((ROOT / "trainer" / folder).glob("*.py"))
    ]
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(files)}, trainer.launch; "
    code += "known = {*sys.stdlib_module_names, 'trainer', '__main__'}; "
    code += "print({name.partition('.')[0] for name in sys.modules} - known)"
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.stdout == "set()\n", ended.stdout + ended.stderr


def test_a_folder_has_a_dozen_files_at_most() -> None:
    modes_and_tasks = {ROOT / "trainer" / "strategies", ROOT / "trainer" / "tasks"}  # a file each
    for package in ("k8s", "trainer"):
        folders = [path for path in (ROOT / package).rglob("*") if path.is_dir()]
        for folder in {*folders} - modes_and_tasks:
            assert len([p for p in folder.glob("*.py") if p.name != "__init__.py"]) <= 12, folder


@pytest.mark.parametrize("folder", ["trainer", "k8s"])
def test_a_file_is_short_and_says_what_it_is_for(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 320, path
        assert not text.strip() or ast.get_docstring(ast.parse(text)), path


def test_help_of_both_entrypoints_needs_no_torch_and_lists_every_setting() -> None:
    from trainer.config.environment import variable
    from trainer.config.settings import Settings

    for module in ("trainer", "trainer.launch"):
        result = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", module, "--help"],
            cwd=ROOT,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert "usage: python -m " + module in result.stdout
        assert "| torch\n" not in result.stderr
        if module == "trainer":
            assert all(variable(name) in result.stdout for name in Settings.model_fields)
