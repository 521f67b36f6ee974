"""The dry run against real ranks: it says what they hold and send."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, clean_environment
from tests.ranks import run_ranks
from trainer.environment import parse, variable
from trainer.plan.costs import pieces_of
from trainer.plan.memory import estimate
from trainer.plan.sizing import size

pytestmark = pytest.mark.slow

COMMON = {
    "task": "charlm-gpt",
    "global_batch": "16",
    "micro_batch": "4",
    "optimizer": "adamw",
    "steps": "2",
    "eval_steps": "0",
    "checkpoint_steps": "0",
}

# mode, ranks, mesh
CASES = [
    ("single", 1, ""),
    ("ddp", 2, ""),
    ("ddp-zero1", 2, ""),
    ("fsdp", 2, ""),
    ("hsdp", 4, "dp_replicate=2,dp_shard=2"),
]


def _count_the_second_step() -> None:
    """Let every rank write what its second step holds and sends to rank-N.json in the run folder."""
    from trainer import strategies
    from trainer.dry_run import measure
    from trainer.footprint import Footprint

    build = strategies.build

    def counted(mode: str, model: Any, context: strategies.Context) -> strategies.Strategy:
        strategy = build(mode, model, context)
        rank, steps = context.runtime.rank, 0

        def step(batches: Any, weight: float) -> Any:
            nonlocal steps
            steps += 1
            if steps == 1:
                return strategy.step(batches, weight)
            losses = []
            with Footprint() as footprint:
                need = measure(
                    lambda: losses.append(strategy.step(batches, weight)),
                    strategy,
                    footprint,
                    rank=rank,
                )
            file = context.settings.run_folder / f"rank-{rank}.json"
            file.write_text(json.dumps(dataclasses.asdict(need)), encoding="utf-8")
            return losses[0]

        return dataclasses.replace(strategy, step=step)

    strategies.build = counted


def dry_run(ranks: int, folder: Path, **written: str) -> dict[str, Any]:
    from trainer.dry_run import run

    assert run(parse(written | {"out": str(folder)}, label=variable), ranks) == 0
    need: dict[str, Any] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return need


@pytest.mark.parametrize(("mode", "ranks", "mesh"), CASES)
def test_a_dry_run_says_what_real_ranks_hold_and_send(
    mode: str, ranks: int, mesh: str, tmp_path: Path
) -> None:
    settings = COMMON | {"mode": mode, "mesh": mesh}
    run_ranks(ranks, tmp_path / "real", _count_the_second_step, **settings)
    real = json.loads((tmp_path / "real" / "rank-0.json").read_text(encoding="utf-8"))
    said = dry_run(ranks, tmp_path / "dry", **settings)
    for name in ("parameters", "gradients", "optimizer", "activations"):
        assert said[name] == pytest.approx(real[name], rel=0.01), name
    for collective in ("all_gather", "reduce_scatter"):  # DDP's all_reduce is out of sight, in C++
        assert said["sent"].get(collective) == real["sent"].get(collective)
    compare_with_arithmetic(said, ranks, settings)


def compare_with_arithmetic(
    said: dict[str, Any], ranks: int, written: dict[str, str], *, peak: float = 0.1
) -> None:
    settings = parse(written, label=variable)
    pieces = pieces_of(settings.task)
    assert pieces is not None
    reckoned = estimate(pieces, size(settings, ranks, label=variable), settings)
    for name in ("parameters", "gradients", "optimizer", "activations"):
        assert getattr(reckoned, name) == pytest.approx(said[name], rel=0.1), name
    assert reckoned.total == pytest.approx(said["peak"], rel=peak)
    # the norm of the gradients is a few bytes beside
    sent = {name: size for name, size in said["sent"].items() if size > 1024}
    assert reckoned.sent == pytest.approx(sent, rel=0.1)


@pytest.mark.parametrize("task", ["digits", "charlm-lstm", "charlm-gru"])
@pytest.mark.parametrize(
    ("mode", "ranks", "mesh"), [("ddp", 2, ""), ("hsdp", 8, "dp_replicate=4,dp_shard=2")]
)
def test_the_arithmetic_knows_the_other_tasks_too(
    task: str, mode: str, ranks: int, mesh: str, tmp_path: Path
) -> None:
    settings = COMMON | {"task": task, "mode": mode, "mesh": mesh, "micro_batch": "2"}
    compare_with_arithmetic(dry_run(ranks, tmp_path, **settings), ranks, settings, peak=0.15)


def test_a_thousand_ranks_fit_into_one_process(tmp_path: Path) -> None:
    settings = COMMON | {"mode": "hsdp", "mesh": "dp_replicate=128,dp_shard=8"}
    few = dry_run(8, tmp_path / "few", **(COMMON | {"mode": "fsdp", "micro_batch": "2"}))
    many = dry_run(
        1024, tmp_path / "many", **(settings | {"global_batch": "4096", "micro_batch": "2"})
    )
    assert many["world_size"] == 1024
    assert many["parameters"] == few["parameters"]
    # the gradients' shards are then averaged over the 128 replicas of each
    assert many["sent"]["all_reduce"] == pytest.approx(2 * 127 / 128 * many["gradients"], rel=0.01)


def test_a_dry_run_says_whether_a_device_is_large_enough(tmp_path: Path) -> None:
    environment = {"TRAINER_DRY_RUN": "2", "TRAINER_MODE": "ddp", "TRAINER_OUT": str(tmp_path)}
    for memory, words in (("80", "it fits in 80 GiB"), ("0.001", "does NOT fit in 0.001 GiB")):
        result = subprocess.run(
            [sys.executable, "-m", "trainer"],
            cwd=ROOT,
            env=clean_environment(TRAINER_DEVICE_MEMORY=memory, **environment),
            capture_output=True,
            text=True,
            check=True,
        )
        assert words in result.stderr
