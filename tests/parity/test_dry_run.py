"""The dry run against real ranks: it says what they hold and send, soon."""

import contextlib
import dataclasses
import io
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import run_command
from tests.pool import carry_out, lend
from tests.pool_rank import Case
from trainer.config.environment import parse, variable
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings
from trainer.plan.sizing import size
from trainer.tasks import charlm_gpt, seqclass, synthetic
from trainer.tasks.parts.text import TextTask
from trainer.tools.fake_step import needs_of_ranks

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

PIPELINED = {"micro_batch": "2", "mode": "pp"}
OFTEN = {"local_steps": "2", "outer_lr": "0.7"}
RECOMPUTED = {"activation_checkpointing": "true"}

# ranks, settings
CASES: dict[str, tuple[int, dict[str, str]]] = {
    "single": (1, {}),
    "dp": (1, {}),
    "mp": (1, {}),
    "hogwild": (1, {"processes": "1", "task": "tests.parity.test_dry_run:Updated"}),
    "ddp": (2, {}),
    "ddp muon": (2, {"optimizer": "muon"}),
    "ddp-zero1 muon": (2, {"optimizer": "muon"}),
    "fsdp fused": (2, {"optimizer": "adamw-fused"}),
    "ddp-zero1": (2, {}),
    "localsgd": (2, OFTEN),
    "fsdp": (2, {}),
    "fsdp recomputed": (2, RECOMPUTED),
    "hsdp": (4, {"mesh": "dp_replicate=2,dp_shard=2"}),
    "pp gpipe": (2, PIPELINED | {"pipeline_schedule": "gpipe"}),
    "pp 1f1b": (2, PIPELINED),
    "pp 1f1b recomputed": (2, PIPELINED | RECOMPUTED),
    "pp interleaved-1f1b": (2, PIPELINED | {"pipeline_schedule": "interleaved-1f1b"}),
    "pp interleaved-zb": (2, PIPELINED | {"pipeline_schedule": "interleaved-zb"}),
    "pp zbv": (2, PIPELINED | {"pipeline_schedule": "zbv"}),
    "pp x ddp": (4, PIPELINED | {"mesh": "pp=2,dp_replicate=2"}),
    "pp x fsdp": (4, PIPELINED | {"mesh": "pp=2,dp_shard=2", "pipeline_schedule": "zbv"}),
    "tp": (2, {}),
    "tp whole": (2, {"sequence_parallel": "false"}),
    "tp whole, loss": (2, {"sequence_parallel": "false", "loss_parallel": "true"}),
    "tp x fsdp": (4, {"mesh": "dp_shard=2,tp=2"}),
    "fsdp tied": (2, {"task": "tests.parity.tasks:WrappedTied"}),
    "fsdp nested": (2, {"task": "tests.parity.nested_tasks:Samples"}),
    "pp x fsdp x tp": (8, PIPELINED | {"mesh": "pp=2,dp_shard=2,tp=2"}),
    "ddp lazy": (2, {"task": "tests.parity.odd_models:Lazy"}),
    "ddp frozen": (2, {"freeze": "blocks.*"}),
    "fsdp frozen": (2, {"freeze": "blocks.*"}),
    "ddp mixed": (2, {"task": "tests.parity.odd_models:Mixed"}),
    "fsdp mixed": (2, {"task": "tests.parity.odd_models:Mixed"}),
    "ddp packed": (2, {"task": "tests.parity.test_dry_run:Packed"}),
    "fsdp packed": (2, {"task": "tests.parity.test_dry_run:Packed"}),
}


def _count_the_second_step() -> None:
    """Let every rank write what its second step holds and sends to rank-N.json in the run folder."""
    from trainer import strategies
    from trainer.models.footprint import Footprint
    from trainer.tools.fake_step import measure

    build = strategies.build

    def counted(mode: str, model: Any, context: strategies.Context) -> strategies.Strategy:
        strategies.build = build  # for the next case that this rank carries out
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


class Updated(TextTask):
    """Charlm-gpt, whose processes under hogwild write what an update holds to COUNTED."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, build=charlm_gpt.Model)


class Packed(seqclass.Task):
    """Asks for the lengths of its sequences, which are equal here: so is what each step holds."""

    def data(self, *, train: bool) -> seqclass.Sequences:  # noqa: ARG002
        tokens = torch.full((64,), 30)
        words = torch.arange(1, 64 * 30 + 1, dtype=torch.int16)
        return seqclass.Sequences(words, tokens.cumsum(0) - tokens, tokens, tokens % 2)


class LargeThatLooks(synthetic.Task):
    """Its loss asks for a value, and it has more than 2 GiB of weights."""

    def model(self) -> nn.Module:
        return nn.Sequential(super().model(), nn.Linear(10, 2**26))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(outputs, targets) * outputs.sum().item()


def _count_updates() -> None:
    from trainer.models.footprint import Footprint
    from trainer.strategies import Strategy, hogwild
    from trainer.tools.fake_step import measure

    update = hogwild._update  # noqa: SLF001

    def counted(model: Any, optimizer: Any, *rest: Any) -> Any:
        zero_grad, optimizer.zero_grad = optimizer.zero_grad, lambda: None
        updates: list[Any] = []
        nothing: Any = None
        strategy = Strategy(model, optimizer, step=nothing, clip=nothing, forward=nothing)
        with Footprint() as footprint:
            need = measure(
                lambda: updates.append(update(model, optimizer, *rest)), strategy, footprint, rank=0
            )
        Path(os.environ["COUNTED"]).write_text(json.dumps(dataclasses.asdict(need)))
        zero_grad()
        return updates[0]

    hogwild._update = counted  # type: ignore[assignment]  # noqa: SLF001


if "COUNTED" in os.environ:  # a process of hogwild's imports this with its task
    _count_updates()


def _say_where_to_count(file: str) -> None:
    os.environ["COUNTED"] = file


def real_run(ranks: int, folder: Path, written: dict[str, str]) -> dict[int, dict[str, Any]]:
    variables = {f"TRAINER_{name.upper()}": value for name, value in written.items()}
    variables |= {"TRAINER_LOG": "json", "TRAINER_OUT": str(folder)}
    before: Any = _count_the_second_step
    if written["mode"] == "hogwild":
        before = partial(_say_where_to_count, str(folder / "rank-0.json"))
    with lend(ranks) as running:
        endings = carry_out(Case(variables, before), running, timeout=120)
    assert [ending.code for ending in endings] == [0] * ranks, endings
    needs = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("rank-*.json")]
    return {need["rank"]: need for need in needs}


def dry_run(ranks: int, folder: Path, **written: str) -> list[dict[str, Any]]:
    from trainer.tools.dry_run import run

    settings = parse(written | {"out": str(folder), "log": "json"}, label=variable)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(settings, ranks) == 0
    assert (
        not folder.exists()
    )  # a run that begins there later would count the time since as its own
    return [json.loads(line) for line in printed.getvalue().splitlines()]


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_says_what_real_ranks_hold_and_send(case: str, tmp_path: Path) -> None:
    ranks, options = CASES[case]
    settings = COMMON | {"mode": case.split(maxsplit=1)[0]} | options
    said = dry_run(ranks, tmp_path / "dry", **settings)
    real = real_run(ranks, tmp_path / "real", settings)
    for need in said:
        measured = real[need["rank"]]
        for name in ("parameters", "gradients", "optimizer", "activations"):
            assert need[name] == pytest.approx(measured[name], rel=0.01), name
        for collective in ("all_gather", "reduce_scatter", "send"):  # DDP's all_reduce is in C++
            assert need["sent"].get(collective) == measured["sent"].get(collective), collective


def test_only_the_parameters_outside_of_blocks_are_gathered_once(tmp_path: Path) -> None:
    """The backward pass begins with them, so they are not freed before it."""
    small = COMMON | {"mode": "fsdp", "task": "digits"}  # without blocks
    for settings, times in ((small, 1), (COMMON | {"mode": "fsdp"}, 2)):
        (kept,), (freed,) = (
            dry_run(4, tmp_path / f"{reshard}", **settings, reshard=reshard)
            for reshard in ("false", "true")
        )
        sent = freed["sent"]["all_gather"] / kept["sent"]["all_gather"]
        assert sent == pytest.approx(times, rel=0.1)


def test_averaged_weights_and_several_processes_count(tmp_path: Path) -> None:
    one = COMMON | {"mode": "hogwild", "processes": "1"}
    (alone,) = dry_run(1, tmp_path / "one", **one)
    (three,) = dry_run(1, tmp_path / "three", **(one | {"processes": "3", "ema_decay": "0.9"}))
    assert (alone["average"], three["average"]) == (0, alone["parameters"])
    assert three["parameters"] == alone["parameters"]  # they share them
    for name in ("gradients", "optimizer", "activations"):
        assert three[name] == 3 * alone[name], name
    shared = alone["parameters"]
    expected = 2 * shared + 3 * (alone["peak"] - shared)
    assert three["peak"] == pytest.approx(expected, rel=0.05)


def test_a_wrapped_model_is_sharded_as_finely_as_the_model_in_it(tmp_path: Path) -> None:
    plain, wrapped = (
        dry_run(8, tmp_path / name, **(COMMON | {"mode": "fsdp", "task": task, "micro_batch": "2"}))
        for name, task in (
            ("plain", "tests.parity.tasks:TiedTokens"),
            ("wrapped", "tests.parity.tasks:WrappedTied"),
        )
    )
    for name in ("parameters", "activations", "peak"):
        assert wrapped[0][name] == pytest.approx(plain[0][name], rel=0.05), name


def test_for_a_gpu_adamw_updates_all_parameters_at_once(tmp_path: Path) -> None:
    """As torch does there: one more copy of the parameters; on a host two of the largest of them."""
    large = {"task": "tests.gpu.test_faults:Large", "optimizer": "adamw"}
    (host,) = dry_run(1, tmp_path / "host", **large)
    (gpu,) = dry_run(1, tmp_path / "gpu", **large, device_memory="80")
    for found, copies in ((host, 6), (gpu, 5)):
        assert found["peak"] == pytest.approx(copies * found["parameters"], rel=0.02)


def test_a_thousand_ranks_fit_into_one_process(tmp_path: Path) -> None:
    settings = COMMON | {"mode": "hsdp", "mesh": "dp_replicate=128,dp_shard=8"}
    (few,) = dry_run(8, tmp_path / "few", **(COMMON | {"mode": "fsdp", "micro_batch": "2"}))
    (many,) = dry_run(
        1024, tmp_path / "many", **(settings | {"global_batch": "4096", "micro_batch": "2"})
    )
    assert many["world_size"] == 1024
    assert many["parameters"] == few["parameters"]
    # the gradients' shards are then averaged over the 128 replicas of each
    assert many["sent"]["all_reduce"] == pytest.approx(2 * 127 / 128 * many["gradients"], rel=0.01)


@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_compressed_gradients_are_half_of_the_bytes(hook: str, tmp_path: Path) -> None:
    whole, half = (
        dry_run(2, tmp_path / "dry", **(COMMON | {"mode": "ddp", "comm_hook": one}))[0]["sent"]
        for one in ("none", hook)
    )
    assert half["all_reduce"] == pytest.approx(whole["all_reduce"] / 2, rel=0.01)


def test_a_dry_run_says_whether_a_device_is_large_enough(tmp_path: Path) -> None:
    environment = {"TRAINER_DRY_RUN": "2", "TRAINER_MODE": "ddp", "TRAINER_OUT": str(tmp_path)}
    for memory, words in (("80", "it fits in 80 GiB"), ("0.001", "does NOT fit in 0.001 GiB")):
        result = run_command(
            [sys.executable, "-m", "trainer"],
            env={"TRAINER_DEVICE_MEMORY": memory, **environment},
            check=True,
        )
        assert words in result.stderr


def test_a_large_task_that_looks_into_its_data_is_refused(tmp_path: Path) -> None:
    task = "tests.parity.test_dry_run:LargeThatLooks"
    settings = Settings(task=task, global_batch=4, out=tmp_path)
    words = "not for a dry run, which has shapes .* its 2.. GiB of weights are too much"
    with pytest.raises(Fault, match=words) as caught:
        needs_of_ranks(settings, size(settings, 2, label=variable))
    assert caught.value.code == Exit.CONFIG
