"""The project's rules that a test can check: which module may import which, and the length of files."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_command

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
    """Return the broken contracts in a copy of the code; nothing if all are kept."""
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


# What each is found for. The file that may have them is trainer/distributed/torch_private.py.
PRIVATE_OF_TORCH = [
    "import torch._dynamo",
    "from torch.utils._pytree import tree_leaves",
    "from torch.utils import _pytree",
    "from torch.nn.modules.batchnorm import _NormBase",
    "def _():\n    from torch.testing._internal.distributed.fake_pg import FakeStore",
    "torch._foreach_zero_([])",
    "torch.ones(1).untyped_storage()._cdata",
    "def _(x: Tensor) -> bool:\n    return x._is_view()",
    "class A(nn.Module):\n    def count(self) -> int:\n        return len(self._parameters)",
    "vars(DeviceMesh)['_concatenate']",
    "getattr(torch, '_foreach_mul_')",
    "import_module('torch._dynamo')",
]


def private_of_torch(text: str) -> list[str]:
    """Return the private names that a file uses but does not define or take from Python's library.

    A private attribute that no class of the file has belongs to torch or to another module.
    """
    nodes = list(ast.walk(ast.parse(text)))
    own = _of_classes(nodes)
    used = []
    for node in nodes:
        match node:
            case ast.Import():
                used += [alias.name for alias in node.names if alias.name.startswith("torch.")]
            case ast.ImportFrom() if (node.module or "").partition(".")[0] == "torch":
                used += [f"{node.module}.{alias.name}" for alias in node.names]
            case ast.Attribute() if node.attr not in own:
                if _root(node.value) not in sys.stdlib_module_names:
                    used.append(f".{node.attr}")
            case ast.Constant(value=str(value)) if re.fullmatch(r"torch(\.\w+)+", value):
                used.append(value)
            case (
                ast.Subscript(value=ast.Call(func=ast.Name("vars")), slice=ast.Constant(str(name)))
                | ast.Call(func=ast.Name("getattr"), args=[_, ast.Constant(str(name)), *_])
            ):
                holder = node.args[0] if isinstance(node, ast.Call) else node.value
                if _root(holder) not in sys.stdlib_module_names:
                    used.append(f".{name}")
    return [name for name in used if re.search(r"\._(?!_)", name)]


def _of_classes(nodes: list[ast.AST]) -> set[str]:
    """Return the names that classes have, and those that are set on an object."""
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            own |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
            own |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return own


def _root(node: ast.AST) -> str:
    return ast.unparse(node).partition(".")[0]


@pytest.mark.parametrize("planted", PRIVATE_OF_TORCH)
def test_a_private_name_of_torch_is_seen(planted: str) -> None:
    assert private_of_torch(planted)


def test_private_names_of_torch_are_in_one_file() -> None:
    files = [path for package in ("k8s", "trainer") for path in (ROOT / package).rglob("*.py")]
    found = {path: private_of_torch(path.read_text(encoding="utf-8")) for path in files}
    assert [path.name for path, names in found.items() if names] == ["torch_private.py"], found


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
    ended = run_command([sys.executable, "-I", "-S", "-c", code])
    assert ended.stdout == "set()\n", ended.stdout + ended.stderr


def test_a_folder_has_a_dozen_files_at_most() -> None:
    modes_and_tasks = {ROOT / "trainer" / "strategies", ROOT / "trainer" / "tasks"}  # one file each
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
        result = run_command(
            [sys.executable, "-X", "importtime", "-m", module, "--help"], check=True
        )
        assert "usage: python -m " + module in result.stdout
        assert "| torch\n" not in result.stderr
        if module == "trainer":
            assert all(variable(name) in result.stdout for name in Settings.model_fields)
