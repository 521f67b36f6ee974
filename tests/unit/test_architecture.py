"""The house rules that a machine can check: who imports whom, and how long a file is."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT, clean_environment

# What the renderer may take from the trainer: the parts that import no torch.
SHARED = {
    "choice",
    "balance",
    "catalogue",
    "contract",
    "costs",
    "environment",
    "exits",
    "memory",
    "modes",
    "partition",
    "schedules",
    "settings",
    "sizing",
}

# A module imports only what has a smaller number.
TRAINER_ORDER = {
    "exits": 0,
    "modes": 10,
    "costs": 10,
    "contract": 10,
    "partition": 10,
    "balance": 10,
    "catalogue": 10,
    "settings": 20,
    "environment": 30,
    "cgroup": 30,
    "ending": 30,
    "schedules": 35,
    "sizing": 40,
    "wire": 40,
    "orphans": 40,
    "coordinator": 45,
    "member": 45,
    "memory": 45,
    "choice": 47,
    "runtime": 50,
    "rendezvous": 55,
    "ops": 60,
    "ema": 60,
    "blocks": 60,
    "precision": 60,
    "batchnorm": 60,
    "chain": 60,
    "tensor_plan": 60,
    "links": 60,
    "machine": 60,
    "exhaustion": 60,
    "where": 60,
    "straggler": 60,
    "recompute": 70,
    "data": 70,
    "order": 70,
    "augment": 75,
    "stop": 70,
    "optim": 70,
    "checkpoint": 70,
    "export": 80,
    "metrics": 70,
    "progress": 70,
    "agent": 70,
    "footprint": 70,
    "stages": 75,
    "tasks": 80,
    "strategies": 80,
    "loader": 80,
    "model": 90,
    "shared": 80,
    "run": 90,
    "preflight": 90,
    "bad_samples": 95,
    "replicas": 100,
    "evaluation": 100,
    "ledger": 100,
    "resume": 100,
    "guard": 110,
    "watch": 110,
    "loop": 120,
    "launch": 120,
    "measure": 85,
    "dry_run": 120,
    "__main__": 130,
    "reference": 130,
}


def imports(folder: str) -> Iterator[tuple[str, str]]:
    """Yield every (file, imported module) of a folder, imports inside functions included."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                yield str(path.relative_to(ROOT)), name


def test_the_trainer_knows_no_cluster() -> None:
    forbidden = ("kubernetes", "jinja2", "yaml", "typer", "k8s", "render")
    wrong = [(f, name) for f, name in imports("trainer") if name.split(".")[0] in forbidden]
    assert wrong == []


def test_the_renderer_knows_no_torch_and_only_the_shared_part_of_the_trainer() -> None:
    seen = [
        (file, name)
        for file, name in (*imports("k8s"), *imports("render.py"))
        if name.split(".")[0] in ("torch", "torchvision", "numpy", "trainer")
    ]
    assert [(f, n) for f, n in seen if n.split(".")[1:2] and n.split(".")[1] not in SHARED] == []


@pytest.mark.parametrize("module", sorted(SHARED))
def test_what_is_shared_imports_no_torch(module: str) -> None:
    code = f"import trainer.{module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_data_goes_one_way() -> None:
    lazily = {("metrics", "progress"), ("launch", "agent")}
    for file, name in imports("trainer"):
        parts = name.split(".")
        here = file.removeprefix("trainer/").removesuffix(".py").split("/")[0]
        if parts[0] != "trainer" or here == "__init__" or parts[1] not in TRAINER_ORDER:
            continue
        if here == parts[1] or (here, parts[1]) in lazily or (parts[1], here) in lazily:
            continue
        assert TRAINER_ORDER[parts[1]] < TRAINER_ORDER[here], f"{file} imports {name}"


def test_every_file_of_the_trainer_has_its_place_in_the_order() -> None:
    files = {path.stem for path in (ROOT / "trainer").glob("*.py")} - {"__init__"}
    assert files <= TRAINER_ORDER.keys()


@pytest.mark.parametrize("folder", ["trainer", "k8s"])
def test_a_file_is_short_and_says_what_it_is_for(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 320, path
        assert not text.strip() or ast.get_docstring(ast.parse(text)), path


def test_help_of_both_entrypoints_needs_no_torch_and_lists_every_setting() -> None:
    from trainer.environment import variable
    from trainer.settings import Settings

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
