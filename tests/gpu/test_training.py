"""Tests that need a GPU: NCCL, half precision, TF32, compiled kernels, devices of one process.

Each case trains on GPUs and is compared with one process on the host, in float32. Run where a GPU is
found, skipped elsewhere: .venv/bin/python -m pytest -m gpu
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.gpu.runs import GPUS, Case, begin, end, on_host
from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.distributed.runtime import Runtime
from trainer.plan.sizing import size
from trainer.strategies import Context
from trainer.strategies.dp_balanced import LossInside
from trainer.tasks import synthetic

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not GPUS, reason="there is no GPU here"),
]

_ADAMW = {"OPTIMIZER": "adamw-fused", "LR": "0.0005"}
_MUON = {"OPTIMIZER": "muon", "LR": "0.0005"}
_TASK = "tests.gpu.test_training:"

CASES = {
    "single": Case(),
    "tf32": Case(settings={"PRECISION": "tf32"}, tolerance=2e-2),
    "bf16": Case(settings={"PRECISION": "bf16"}, tolerance=0.1),
    "fp16": Case(settings={"PRECISION": "fp16"}, tolerance=0.1),
    "fp64": Case(both={"PRECISION": "fp64"}, tolerance=1e-8),
    "compile": Case(settings={"COMPILE": "true"}, task="charlm-gpt"),
    "compiled step": Case(settings={"COMPILE": "step"}),
    "compiled step, gpt": Case(settings={"COMPILE": "step"}, both=_ADAMW, task="charlm-gpt"),
    "channels last": Case(settings={"CHANNELS_LAST": "true"}),
    "recomputed": Case(settings={"ACTIVATION_CHECKPOINTING": "true"}),
    "averaged weights": Case(both={"EMA_DECAY": "0.9"}),
    "fused adamw": Case(both=_ADAMW, task="charlm-gpt"),
    "muon": Case(both=_MUON, task="charlm-gpt", tolerance=1e-2),
    "lstm": Case(task="charlm-lstm"),
    "workers": Case(settings={"WORKERS": "2"}, task=f"{_TASK}OneByOne"),
    "dp": Case("dp"),
    "dp-balanced": Case("dp-balanced"),
    "mp": Case("mp", settings={"MICRO_BATCH": "8"}),
    "auto": Case("auto", 2),
    "ddp": Case("ddp", 2),
    "ddp, static graph": Case("ddp", 2, {"STATIC_GRAPH": "true", "BUCKET_MB": "0.1"}),
    "ddp, bf16 hook": Case("ddp", 2, {"COMM_HOOK": "bf16"}, tolerance=0.1),
    "ddp, fp16": Case("ddp", 2, {"PRECISION": "fp16"}, tolerance=0.1),
    "ddp, compiled step": Case("ddp", 2, {"COMPILE": "step"}),
    "ddp, norm over all ranks": Case("ddp", 2, {"SYNC_BATCHNORM": "true"}, task=f"{_TASK}Normed"),
    "ddp-zero1": Case("ddp-zero1", 2, both=_ADAMW),
    "ddp-zero1, muon": Case("ddp-zero1", 2, both=_MUON, task="charlm-gpt", tolerance=1e-2),
    # each rank clips by the norm of its own gradient
    "localsgd": Case("localsgd", 2, {"LOCAL_STEPS": "1"}, both={"CLIP_NORM": "0"}),
    "fsdp": Case("fsdp", 2),
    "fsdp, gpt": Case("fsdp", 2, both=_ADAMW, task="charlm-gpt"),
    "fsdp, offloaded": Case("fsdp", 2, {"CPU_OFFLOAD": "true"}),
    "fsdp, bf16": Case("fsdp", 2, {"PRECISION": "bf16"}, tolerance=0.1),
    "pp": Case("pp", 2),
    "pp, zbv": Case("pp", 2, {"PIPELINE_SCHEDULE": "zbv", "MICRO_BATCH": "8"}),
    "tp": Case("tp", 2, task="charlm-gpt"),
    "tp, loss": Case("tp", 2, {"LOSS_PARALLEL": "true"}, task="charlm-gpt"),
    "hsdp": Case("hsdp", 4, {"MESH": "dp_replicate=2,dp_shard=2"}),
    "pp, sharded": Case("pp", 4, {"MESH": "pp=2,dp_shard=2"}),
}


class OneByOne(synthetic.Task):
    """Vectors that loader workers read, so that batches come to the GPU from pinned memory."""

    def data(self, *, train: bool) -> Any:
        whole = super().data(train=train)
        return list(zip(whole.inputs, whole.targets.tolist(), strict=True))


class Normed(synthetic.Task):
    """Starts with a BatchNorm."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(64), super().model())


@pytest.mark.parametrize("name", CASES)
def test_gpus_train_as_the_host_does(name: str, start: Any, tmp_path: Path) -> None:
    case = CASES[name]
    expected = on_host(start, case)
    found = end(begin(start, case, TRAINER_OUT=str(tmp_path / "run")))
    (launch,) = found.of("launch")
    assert launch["device"] == "cuda:0"
    assert launch["backend"] == ("nccl" if case.ranks > 1 else "none")
    assert found.losses == pytest.approx(expected.losses, rel=case.tolerance)
    evaluated = [[event["loss"] for event in one.of("eval")] for one in (found, expected)]
    assert len(evaluated[0]) == 2
    assert evaluated[0] == pytest.approx(evaluated[1], rel=case.tolerance)
    where = "read from the host" if name == "workers" else "kept on cuda:0"
    assert f"training set is {where}" in found.stderr
    assert found.of("summary")[0]["peak_memory"] > 0


@pytest.mark.parametrize(
    "name", ["single", "mp", "ddp-zero1", "fsdp, offloaded", "fsdp, gpt", "pp", "tp"]
)
def test_a_checkpoint_of_gpus_goes_on_on_the_host(name: str, start: Any, tmp_path: Path) -> None:
    """A copy in a separate stream, from every device, equals the original."""
    case, constant = CASES[name], {"TRAINER_SCHEDULE": "constant"}
    out = {"TRAINER_OUT": str(tmp_path / "run")} | constant
    first = begin(start, case, **out, TRAINER_STEPS="10", TRAINER_CHECKPOINT_STEPS="4")
    end(first)
    rest = on_host(start, case, **out)
    assert next(event["step"] for event in rest.of("checkpoint")) == 10
    expected = on_host(start, case, **constant).losses
    losses = {step: loss for step, loss in expected.items() if step > 10}
    assert rest.losses == pytest.approx(losses, rel=case.tolerance)


@pytest.mark.parametrize("compiled", ["false", "true", "step"])
def test_a_run_that_goes_on_draws_the_same_random_numbers(
    compiled: str, start: Any, tmp_path: Path
) -> None:
    case = Case(task=f"{_TASK}Dropping", settings={"COMPILE": compiled, "SCHEDULE": "constant"})
    whole = end(begin(start, case))
    out = {"TRAINER_OUT": str(tmp_path / "run")}
    end(begin(start, case, **out, TRAINER_STEPS="10"))
    rest = end(begin(start, case, **out))
    losses = {step: loss for step, loss in whole.losses.items() if step > 10}
    assert rest.losses == pytest.approx(losses, rel=1e-5)


class Dropping(synthetic.Task):
    """Starts with a dropout."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), super().model())


def test_local_sgd_averages_what_nccl_can_send(start: Any, tmp_path: Path) -> None:
    """AdamW counts its steps on the CPU."""
    case = Case("localsgd", 2, {"LOCAL_STEPS": "4", "OPTIMIZER": "adamw"})
    end(begin(start, case, TRAINER_OUT=str(tmp_path)))


def test_the_loss_inside_two_replicas_on_one_gpu() -> None:
    device, settings = torch.device("cuda", 0), Settings(mode="dp-balanced")
    sizing = size(settings, 1, label=str)
    runtime = Runtime(0, 0, device, "none", sizing, None, None, 0)
    loss = nn.CrossEntropyLoss(reduction="none")
    batch = Batch(
        torch.randn(6, 8, device=device),
        torch.arange(6, device=device) % 4,
        torch.tensor([1.0, 1, 1, 1, 1, 0], device=device),  # the last one is padding
    )
    context = Context(settings, runtime, loss, lambda: batch)
    torch.manual_seed(0)
    inside = LossInside(nn.Linear(8, 4).to(device), context)
    found = []
    for module in (inside, nn.DataParallel(inside, device_ids=[0, 0])):
        inside.zero_grad()
        total = module(batch.inputs, batch.targets, batch.weights).sum()
        total.backward()
        found.append((total.detach(), *(p.grad for p in inside.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
