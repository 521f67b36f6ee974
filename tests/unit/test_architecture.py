"""The house rules that a machine can check: who imports whom, and how long a file is."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT, clean_environment

# What the renderer may take from the trainer: the parts that import no torch.
SHARED = {"catalogue", "contract", "environment", "exits", "lines", "modes", "plan", "settings"}

# A module imports only what has a smaller number; a package without a line counts as one.
TRAINER_ORDER = {
    "exits": 0,
    "modes": 10,
    "catalogue": 10,
    "contract": 10,
    "health": 10,
    "lines": 10,
    "plan.balance": 10,
    "plan.costs": 10,
    "plan.partition": 10,
    "settings": 20,
    "environment": 30,
    "ending": 30,
    "plan.schedules": 35,
    "plan.sizing": 40,
    "plan.in_flight": 40,
    "plan.memory": 45,
    "plan.choice": 47,
    "guards.cgroup": 30,
    "arrival": 40,
    "nodes.connect": 40,
    "nodes.fork_server": 45,
    "nodes.init": 40,
    "nodes.interface": 40,
    "nodes.log": 40,
    "nodes.orphans": 40,
    "nodes.output": 42,
    "nodes.wire": 40,
    "nodes.coordinator": 45,
    "nodes.member": 45,
    "runtime": 50,
    "nodes.rendezvous": 55,
    "models.batchnorm": 60,
    "models.blocks": 60,
    "models.chain": 60,
    "models.ema": 60,
    "models.ops": 60,
    "models.tensor_plan": 60,
    "precision": 60,
    "guards.exhaustion": 60,
    "guards.links": 60,
    "guards.machine": 60,
    "guards.dump": 65,
    "guards.straggler": 60,
    "guards.usage": 60,
    "guards.where": 60,
    "checkpoint": 70,
    "nodes.failures": 72,
    "nodes.in_vain": 72,
    "nodes.agent": 75,
    "nodes.process": 50,
    "data.order": 70,
    "data.sets": 70,
    "footprint": 70,
    "guards.stop": 70,
    "metrics": 70,
    "models.recompute": 70,
    "optim": 70,
    "progress": 70,
    "prometheus": 72,
    "tensorboard": 72,
    "data.augment": 75,
    "models.stages": 75,
    "data.resident": 75,
    "data.loader": 80,
    "data.shared": 80,
    "export": 80,
    "strategies": 80,
    "tasks": 80,
    "measure": 85,
    "models.build": 90,
    "preflight": 90,
    "run": 90,
    "data.bad_samples": 95,
    "data.ledger": 100,
    "evaluation": 100,
    "guards.replicas": 100,
    "resume": 100,
    "guards.nonfinite": 110,
    "guards.watch": 110,
    "dry_run": 120,
    "launch": 140,
    "loop": 120,
    "__main__": 130,
    "reference": 130,
}


def place(dotted: str) -> str | None:
    """Return the line of TRAINER_ORDER that the module a.b, or a name within it, belongs to."""
    parts = dotted.split(".")
    return next((n for n in (".".join(parts[:2]), parts[0]) if n in TRAINER_ORDER), None)


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


def test_what_is_shared_imports_no_torch() -> None:
    shared = [name for name in TRAINER_ORDER if name.split(".")[0] in SHARED]
    assert len(shared) > len(SHARED)
    imported = ", ".join(f"trainer.{name}" for name in shared)
    code = f"import {imported}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_data_goes_one_way() -> None:
    lazily = {
        ("metrics", "progress"),
        ("metrics", "prometheus"),
        ("metrics", "tensorboard"),
        ("launch", "nodes.agent"),
    }
    for file, name in imports("trainer"):
        inside = file.removeprefix("trainer/").removesuffix(".py").replace("/", ".")
        here, there = place(inside), place(name.removeprefix("trainer."))
        if not name.startswith("trainer.") or here is None or there is None or here == there:
            continue
        if (here, there) in lazily or (there, here) in lazily:
            continue
        assert TRAINER_ORDER[there] < TRAINER_ORDER[here], f"{file} imports {name}"


def test_every_file_of_the_trainer_has_its_place_in_the_order() -> None:
    files = (ROOT / "trainer").rglob("*.py")
    modules = [".".join(file.relative_to(ROOT / "trainer").with_suffix("").parts) for file in files]
    assert [name for name in modules if "__init__" not in name and place(name) is None] == []
    assert TRAINER_ORDER.keys() <= {place(name) for name in modules}


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
