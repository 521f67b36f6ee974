"""Models that people have, as the tasks of k8s/jobs/own_model: every mode is equal to one process."""

import ast
import importlib.util
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.parity.compare import differences
from tests.parity.conftest import Once
from tests.ranks import run_ranks

FOLDER = ROOT / "k8s/jobs/own_model"
COMMON = {"steps": "20", "precision": "fp64", "global_batch": "16", "eval_steps": "0"}
# A mode, its ranks, settings, and what the name of a tied model ends with, where it takes one.
MODES: list[tuple[str, int, dict[str, str], str]] = [
    ("dp", 1, {}, "-tied"),
    ("dp-balanced", 1, {}, "-tied"),
    ("ddp", 2, {}, "-tied"),
    ("ddp-zero1", 2, {}, "-tied"),
    ("fsdp", 2, {}, "-tied"),
    ("fsdp", 2, {"activation_checkpointing": "true", "micro_batch": "4"}, "-tied"),
    ("hsdp", 4, {"mesh": "dp_replicate=2,dp_shard=2"}, "-tied"),
    ("mp", 1, {}, ""),
    ("tp", 2, {"loss_parallel": "false"}, ""),
    ("pp", 2, {"micro_batch": "4"}, ""),
    ("pp", 4, {"micro_batch": "4", "mesh": "pp=2,tp=2", "sequence_parallel": "false"}, ""),
]
has_transformers = importlib.util.find_spec("transformers") or list(
    (ROOT / "build/frameworks").glob("lib/python3*/site-packages/transformers")
)
needs_transformers = pytest.mark.skipif(
    not has_transformers, reason="no transformers; make frameworks"
)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "ranks", "settings", "tied"), MODES, ids=[m[0] for m in MODES])
def test_nanogpts_model(
    mode: str, ranks: int, settings: dict[str, str], tied: str, once: Once, tmp_path: Path
) -> None:
    common = COMMON | {"task": "tests.parity.own_models:nano_gpt"}
    common |= {"model": f"tiny{tied}"}
    single = once(mode="single", **common)
    events = run_ranks(ranks, tmp_path, mode=mode, **common, **settings)
    assert max(differences(single, (tmp_path, events)).values()) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "mode", "ranks", "settings"),
    [
        ("Split", "tp", 2, {"activation_checkpointing": "true"}),
        ("Split", "tp", 4, {"mesh": "dp_shard=2,tp=2", "micro_batch": "4"}),
        ("Chained", "pp", 4, {"mesh": "pp=2,tp=2", "micro_batch": "4"}),
        ("Chained", "pp", 8, {"mesh": "pp=2,dp_shard=2,tp=2", "micro_batch": "4"}),
    ],
)
def test_layers_without_a_style_compute_as_in_one_process(
    task: str, mode: str, ranks: int, settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    """Below a module with a weight of its own, layers are split (a ValueError of torch before)."""
    common = COMMON | {"task": f"tests.parity.split_models:{task}", "optimizer": "adamw-fused"}
    single = once(mode="single", **common)
    settings = settings | {"sequence_parallel": "false"}
    events = run_ranks(ranks, tmp_path, mode=mode, **common, **settings)
    assert max(differences(single, (tmp_path, events)).values()) < 1e-9


@pytest.mark.slow
@needs_transformers
@pytest.mark.parametrize(
    ("mode", "ranks", "settings"), [m[:3] for m in MODES if m[3]], ids=[m[0] for m in MODES if m[3]]
)
def test_a_gpt2_of_transformers(
    mode: str, ranks: int, settings: dict[str, str], once: Once, tmp_path: Path
) -> None:
    common = COMMON | {"task": "tests.parity.own_models:gpt2"}
    single = once(mode="single", **common)
    events = run_ranks(ranks, tmp_path, mode=mode, **common, **settings)
    assert max(differences(single, (tmp_path, events)).values()) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("task", ["own_models:nano_gpt", "own_models:gpt2", "tasks:Vit"])
def test_local_sgd_learns(task: str, tmp_path: Path) -> None:
    """Its ranks hold different weights, so it is compared with nothing."""
    if task == "own_models:gpt2" and not has_transformers:
        pytest.skip("no transformers; make frameworks")
    settings = {"task": f"tests.parity.{task}", "mode": "localsgd", "local_steps": "4"}
    settings |= {"optimizer": "adamw", "lr": "0.002"} if task == "tasks:Vit" else {}
    events = run_ranks(2, tmp_path, **(COMMON | settings))
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.py")))
def test_it_is_short(file: str) -> None:
    body = ast.parse((FOLDER / file).read_text(encoding="utf-8")).body[1:]
    code = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]
    lines = [line for node in code for line in ast.unparse(node).splitlines() if line.strip()]
    assert 0 < len(lines) < 30
