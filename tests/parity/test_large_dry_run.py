"""Dry runs of large models: the layers that are found, and the time.

pytest -o addopts= tests/parity/test_large_dry_run.py
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run_command
from tests.parity.test_models import needs_transformers

pytestmark = pytest.mark.slow


def in_a_process(
    ranks: int, folder: Path, *script: str, **written: str
) -> tuple[list[dict[str, Any]], float]:
    """Return what a dry run says of each stage, and the processor time of its process in seconds."""
    settings = {"global_batch": str(ranks), "mode": "fsdp", "out": str(folder / "run")} | written
    settings |= {"dry_run": str(ranks), "log": "json", "data": str(folder)}
    folder.mkdir()
    for name in ("train", "val"):
        with (folder / f"{name}.bin").open("wb") as file:  # tokens of GPT-2's vocabulary
            file.truncate(200_000)
    before = os.times()
    done = run_command(
        [sys.executable, *(script or ("-m", "trainer"))],
        env={f"TRAINER_{name.upper()}": v for name, v in settings.items()},
    )
    after = os.times()
    assert done.returncode == 0, done.stderr
    seconds = after.children_user + after.children_system
    needs = [json.loads(line) for line in done.stdout.splitlines()]
    return needs, seconds - before.children_user - before.children_system


BY_HAND = """
from tests.parity.own_models import by_hand
from trainer.__main__ import main
from trainer.strategies import fsdp
fsdp.blocks = by_hand
main()
"""


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("parity.own_models:whole_nano_gpt", "124m-tied"),
        pytest.param("parity.own_models:whole_gpt2", "124m", marks=needs_transformers),
        ("unit.trainer.tasks.test_torchvision_models:Photographs", "vit_b_16"),
    ],
)
def test_layers_that_are_found_take_the_memory_of_layers_named_by_hand(
    task: str, model: str, tmp_path: Path
) -> None:
    settings = {"task": f"tests.{task}", "model": model, "image_size": "224"}
    (found,), _ = in_a_process(8, tmp_path / "found", **settings)
    (by_hand,), _ = in_a_process(8, tmp_path / "by_hand", "-c", BY_HAND, **settings)
    for name in ("parameters", "activations", "peak"):
        assert found[name] == pytest.approx(by_hand[name], rel=0.05), name


MEASURED = """
import json, resource
from trainer.__main__ import main
main()
print(json.dumps({"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adamw-fused"])
def test_a_dry_run_takes_less_memory_than_the_weights(optimizer: str, tmp_path: Path) -> None:
    settings = {"task": "tokens", "model": "350m", "mode": "ddp", "optimizer": optimizer}
    (few, without), _ = in_a_process(
        2, tmp_path / "few", "-c", MEASURED, **(settings | {"model": "tiny"})
    )
    (many, real), _ = in_a_process(2, tmp_path / "many", "-c", MEASURED, **settings)
    assert many["parameters"] > 1.4e9 > 20 * few["parameters"]
    assert real["resident"] - without["resident"] < 0.2 * many["parameters"]


BARE = """
import json
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from tests.parity.own_models import whole_nano_gpt
from trainer.config.environment import from_environment

with FakeTensorMode():
    task = whole_nano_gpt(from_environment())
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.zeros(1, task.size.length, dtype=torch.long)
    F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    optimizer.step()
print(json.dumps({"parameters": sum(one.numel() for one in model.parameters())}))
"""


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "fsdp", "activation_checkpointing": "true"},
        {"mode": "pp", "mesh": "pp=2,dp_shard=16", "micro_batch": "1"},
    ],
    ids=["fsdp", "pp"],
)
def test_406_million_parameters_on_32_ranks_take_few_steps_of_one_fake_rank(
    settings: dict[str, str], tmp_path: Path
) -> None:
    settings |= {"task": "tests.parity.own_models:whole_nano_gpt", "model": "350m"}
    found, seconds = in_a_process(32, tmp_path / "run", **settings)
    (bare,), of_bare = in_a_process(1, tmp_path / "bare", "-c", BARE, **settings)
    print(f"{seconds:.1f} s of a core; a step in bare torch, with fake tensors, {of_bare:.1f} s")
    ranks = 32 / len(found)  # of each stage; 4 bytes a parameter
    parameters = sum(need["parameters"] for need in found) * ranks / 4
    assert (
        parameters == pytest.approx(bare["parameters"], rel=0.01) == pytest.approx(406e6, rel=0.01)
    )
    assert seconds < 3 * of_bare
