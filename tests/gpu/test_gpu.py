"""What only a GPU can show: NCCL, half precision, TF32, compiled kernels, devices of one process.

Each case trains on GPUs and is compared with one process on the host, in float32. Run where a GPU is
found, skipped elsewhere: .venv/bin/python -m pytest -m gpu
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import ROOT
from trainer.config.settings import Settings
from trainer.data.sets import Batch
from trainer.distributed.runtime import Runtime
from trainer.plan.sizing import size
from trainer.strategies import Context
from trainer.strategies.dp_balanced import LossInside
from trainer.tasks import synthetic

GPUS = torch.cuda.device_count()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not GPUS, reason="there is no GPU here"),
]


@dataclass(frozen=True)
class Case:
    """A mode on `ranks` GPUs, its settings, and how far its losses may be from the host's."""

    mode: str
    ranks: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    tolerance: float = 1e-3
    task: str = "digits"


CASES = {
    "single": Case("single"),
    "tf32": Case("single", settings={"PRECISION": "tf32"}, tolerance=2e-2),
    "bf16": Case("single", settings={"PRECISION": "bf16"}, tolerance=0.1),
    "fp16": Case("single", settings={"PRECISION": "fp16"}, tolerance=0.1),
    "compile": Case("single", settings={"COMPILE": "true"}, task="charlm-gpt"),
    "channels last": Case("single", settings={"CHANNELS_LAST": "true"}),
    "recomputed": Case("single", settings={"ACTIVATION_CHECKPOINTING": "true"}),
    "lstm": Case("single", task="charlm-lstm"),
    "workers": Case("single", settings={"WORKERS": "2"}, task="tests.gpu.test_gpu:OneByOne"),
    "dp": Case("dp"),
    "dp-balanced": Case("dp-balanced"),
    "mp": Case("mp", settings={"MICRO_BATCH": "8"}),
    "ddp": Case("ddp", 2),
    "ddp, bf16 hook": Case("ddp", 2, {"COMM_HOOK": "bf16"}, 0.1),
    "ddp, fp16": Case("ddp", 2, {"PRECISION": "fp16"}, 0.1),
    "ddp-zero1": Case("ddp-zero1", 2),
    "localsgd": Case("localsgd", 2, {"LOCAL_STEPS": "1"}),
    "fsdp": Case("fsdp", 2),
    "fsdp, offloaded": Case("fsdp", 2, {"CPU_OFFLOAD": "true"}),
    "fsdp, bf16": Case("fsdp", 2, {"PRECISION": "bf16"}, 0.1),
    "pp": Case("pp", 2),
    "pp, zbv": Case("pp", 2, {"PIPELINE_SCHEDULE": "zbv"}),
    "tp": Case("tp", 2, task="charlm-gpt"),
    "hsdp": Case("hsdp", 4, {"MESH": "dp_replicate=2,dp_shard=2"}),
}


class OneByOne(synthetic.Task):
    """Vectors that loader workers read, so that batches come to the GPU out of pinned memory."""

    def data(self, *, train: bool) -> Any:
        whole = super().data(train=train)
        return list(zip(whole.inputs, whole.targets.tolist(), strict=True))


def run(start: Any, case: Case, *, host: Any = False, **more: str) -> Any:  # host: bool
    """Train twenty steps as `case` says, or in one process on the host, and return how it ended."""
    wanted = {"TASK": case.task, "STEPS": "20", "LOG_STEPS": "1", "EVAL_STEPS": "0", "LOG": "json"}
    wanted |= {"CHECKPOINT_STEPS": "0", "WARMUP_STEPS": "4", "OUT": "run"}
    # AdamW divides a gradient that is nothing but rounding by its own size.
    wanted |= {"OPTIMIZER": "sgd", "LR": "0.03"}
    wanted |= {"MODE": "single"} if host else {"MODE": case.mode, **case.settings}
    env = {f"TRAINER_{name}": value for name, value in (wanted | more).items()}
    env["PYTHONPATH"] = str(ROOT)
    if host:
        return start("-m", "trainer", CUDA_VISIBLE_DEVICES="", **env).end(timeout=280)
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", str(case.ranks))
    module = () if case.ranks == 1 else torchrun
    return start(*module, "-m", "trainer", **env).end(timeout=280)


@pytest.mark.parametrize("name", CASES)
def test_gpus_train_as_the_host_does(name: str, start: Any) -> None:
    case = CASES[name]
    if case.ranks > GPUS:
        pytest.skip(f"{case.ranks} ranks need as many GPUs, there are {GPUS}")
    expected, found = run(start, case, host=True), run(start, case)
    assert (expected.code, found.code) == (0, 0), found.stderr
    (launch,) = found.of("launch")
    assert launch["device"] == "cuda:0"
    assert launch["backend"] == ("nccl" if case.ranks > 1 else "none")
    assert found.losses == pytest.approx(expected.losses, rel=case.tolerance)
    where = "read from the host" if name == "workers" else "kept on cuda:0"
    assert f"training set is {where}" in found.stderr
    assert found.of("summary")[0]["peak_memory"] > 0


@pytest.mark.parametrize("name", ["single", "mp", "fsdp, offloaded"])
def test_a_checkpoint_of_gpus_goes_on_on_the_host(name: str, start: Any, tmp_path: Path) -> None:
    """What a stream of its own has copied, from every device, is what was there."""
    case, common = CASES[name], {"SCHEDULE": "constant", "OUT": str(tmp_path / "run")}
    if case.ranks > GPUS:
        pytest.skip(f"{case.ranks} ranks need as many GPUs, there are {GPUS}")
    expected = run(start, case, host=True, SCHEDULE="constant")
    first = run(start, case, **common, STEPS="10", CHECKPOINT_STEPS="4")
    rest = run(start, case, host=True, **common)
    assert (first.code, rest.code) == (0, 0), first.stderr + rest.stderr
    assert next(event["step"] for event in rest.of("checkpoint")) == 10
    losses = {step: loss for step, loss in expected.losses.items() if step > 10}
    assert rest.losses == pytest.approx(losses, rel=case.tolerance)


@pytest.mark.skipif(GPUS < 2, reason="2 ranks need as many GPUs")
def test_a_rank_that_fails_alone_ends_all_with_its_own_code(start: Any) -> None:
    """NCCL lets no rank leave alone, so the one that fails must not wait for the others."""
    variables = {"TRAINER_TASK": "tests.faults.tasks:Greedy", "TRAINER_LOG": "json"}
    variables |= {"PET_NPROC_PER_NODE": "2", "GREEDY": "python", "PYTHONPATH": str(ROOT)}
    ended = start("-m", "trainer.launch", **variables).end(timeout=120)
    assert ended.code == 70, ended.stderr
    assert "out of memory (host)" in ended.stderr


def test_a_profile_has_the_allocations(start: Any, tmp_path: Path) -> None:
    run(start, CASES["single"], PROFILE="2:3", OUT=str(tmp_path))
    (snapshot,) = (tmp_path / "profile").glob("*.memory.pickle")
    assert b"device_traces" in snapshot.read_bytes()


@pytest.mark.skipif(GPUS < 2, reason="2 ranks need as many GPUs")
def test_local_sgd_averages_what_nccl_can_send(start: Any) -> None:
    """AdamW counts its steps on the CPU."""
    ended = run(start, Case("localsgd", 2, {"LOCAL_STEPS": "4", "OPTIMIZER": "adamw"}))
    assert ended.code == 0, ended.stderr


def test_the_loss_inside_two_replicas_on_one_gpu() -> None:
    device, settings = torch.device("cuda", 0), Settings(mode="dp-balanced")
    sizing = size(settings, 1, label=str)
    runtime = Runtime(0, 0, device, "none", sizing, None, None, 0)
    loss = nn.CrossEntropyLoss(reduction="none")
    batch = Batch(
        torch.randn(6, 8, device=device),
        torch.arange(6, device=device) % 4,
        torch.tensor([1.0, 1, 1, 1, 1, 0], device=device),  # the last one only fills the shape
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
