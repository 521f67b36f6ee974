"""Faults and memory of GPUs: memory runs out, devices fail, ranks hang or are lost, and the run reacts.

Run where a GPU is found, skipped elsewhere: .venv/bin/python -m pytest -m gpu
"""

import os
import pickle
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch import Tensor, nn

from tests.conftest import Started, ranks_below
from tests.gpu.runs import GPUS, Case, begin, end, on_host
from trainer.tasks import synthetic

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not GPUS, reason="there is no GPU here"),
]

_FAULTS = "tests.faults.tasks:"
_SLOW = Case(
    "ddp",
    2,
    task=f"{_FAULTS}Slow",
    both={"STEPS": "100000", "EVAL_STEPS": "0", "COLLECTIVE_TIMEOUT": "45"},
)


def codes(running: list[Started]) -> list[int]:
    """Return the codes of all launchers; if one has all ranks, the code of the rank at fault."""
    return [one.end(timeout=120).code for one in running]


def speaker(running: list[Started]) -> Started:
    """Return the node of rank 0, which writes the events; in an elastic job it may be any node."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        for one in running:
            assert one.process.poll() is None, one.read(one.stderr)
            if one.read(one.out):
                return one
        time.sleep(0.05)
    raise AssertionError([one.read(one.stderr) for one in running])


def lost(of_the_fault: int) -> list[int]:
    """Return the codes of a job of two ranks whose second ended so."""
    return [of_the_fault] if GPUS > 1 else [69, of_the_fault]


@pytest.mark.parametrize("ranks", [1, 2])
def test_more_than_the_gpu_has_is_70_with_a_summary_and_advice(
    ranks: int, start: Any, tmp_path: Path
) -> None:
    case = Case("single" if ranks == 1 else "ddp", ranks, task=f"{_FAULTS}Greedy")
    running = begin(start, case, GREEDY="torch", TRAINER_OUT=str(tmp_path))
    assert codes(running) == ([70] if ranks == 1 else lost(70))
    said = running[-1].read(running[-1].stderr)
    assert "out of memory (cuda:" in said
    assert "try TRAINER_MICRO_BATCH=" in said
    summary = (tmp_path / f"logs/rank-{ranks - 1}.memory").read_text(encoding="utf-8")
    assert "GPU reserved memory" in summary
    assert "in loss" in summary


class Outside(synthetic.Task):
    """From call OUTSIDE of `loss` on, labels are not valid classes, which a GPU kernel detects."""

    calls = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return super().loss(outputs, targets + 10**6 * (self.calls >= int(os.environ["OUTSIDE"])))


@pytest.mark.parametrize(("call", "code"), [("3", 64), ("8", 70)])
def test_an_index_outside_its_range_is_the_codes_fault_and_not_the_machines(
    call: str, code: int, start: Any
) -> None:
    """The first two calls try the task; in the first step the task's code is reported as the cause."""
    (running,) = begin(start, Case(task="tests.gpu.test_faults:Outside"), OUTSIDE=call)
    ended = running.end()
    assert ended.code == code, ended.stderr
    (error,) = ended.of("error")
    assert "device-side assert triggered: an index outside its range" in error["message"]
    assert "CUDA_LAUNCH_BLOCKING=1" in error["message"]


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", "0.03"), ("adamw-fused", "0.003")])
def test_a_step_without_a_finite_gradient_is_skipped_as_on_the_host(
    optimizer: str, lr: str, start: Any
) -> None:
    """The GPU decides, and the host knows only later; running statistics are also unchanged."""
    both = {"OPTIMIZER": optimizer, "LR": lr, "LOG_STEPS": "7"}
    case = Case(task=f"{_FAULTS}Poisoned", both=both)
    expected = on_host(start, case, POISONED="3,8,9")
    found = end(begin(start, case, POISONED="3,8,9"))
    for one in (found, expected):
        assert [event["step"] for event in one.of("fault")] == [3, 8, 9]
        assert one.of("summary")[0]["skipped_steps"] == 3
    assert found.losses == pytest.approx(expected.losses, rel=1e-3)
    evaluated = [[event["loss"] for event in one.of("eval")] for one in (found, expected)]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-3)


def test_many_of_them_in_a_row_end_a_run_on_a_gpu_too(start: Any, tmp_path: Path) -> None:
    both = {"LOG_STEPS": "100", "CHECKPOINT_STEPS": "4", "NONFINITE_ALLOWANCE": "3"}
    case = Case(task=f"{_FAULTS}Poisoned", both=both)
    ended = end(begin(start, case, POISONED="9,10,11", TRAINER_OUT=str(tmp_path)), code=72)
    kinds = [(event["kind"], event["step"]) for event in ended.of("fault")]
    skipped = [("nonfinite", 9), ("nonfinite", 10), ("nonfinite", 11)]
    assert kinds == [*skipped, ("rolled_back", 11), *skipped]


def test_a_rank_that_hangs_is_named_and_all_end_with_69(start: Any, tmp_path: Path) -> None:
    case = Case("ddp", 2, task=f"{_FAULTS}Stuck", both={"COLLECTIVE_TIMEOUT": "15"})
    running = begin(start, case, STUCK="1", TRAINER_OUT=str(tmp_path))
    assert set(codes(running)) == {69}
    (hang,) = [event for event in running[0].end().of("fault") if event["kind"] == "hang"]
    assert (hang["missing"], hang["ranks_heard"]) == ([1], [0, 1])
    assert "in loss" in (tmp_path / "logs/rank-1.stack").read_text(encoding="utf-8")
    assert (tmp_path / "logs/rank-0.stack").exists()


def test_a_rank_that_is_killed_ends_the_others(start: Any, tmp_path: Path) -> None:
    case = Case("ddp", 2, task=f"{_FAULTS}Stuck", both={"COLLECTIVE_TIMEOUT": "60"})
    running = begin(start, case, STUCK="1", HOW="killed", TRAINER_OUT=str(tmp_path))
    began = time.monotonic()
    assert codes(running) == lost(70)
    assert time.monotonic() - began < 90


def test_sigterm_saves_and_the_next_run_goes_on(start: Any, tmp_path: Path) -> None:
    out = {"TRAINER_OUT": str(tmp_path)}
    running = begin(start, _SLOW, SLOW="50", SLOW_RANK_1="50", **out)
    running[0].wait_for('"event": "usage"')
    running[-1].process.send_signal(signal.SIGTERM)
    assert set(codes(running)) == {143}
    ended = running[0].end()
    used = [one for event in ended.of("usage") for one in event["ranks"]]
    assert all(2**20 < one["memory"] < one["memory_of"] for one in used), used
    stopped = ended.of("checkpoint")[-1]["step"]
    rest = end(begin(start, _SLOW, **out, TRAINER_STEPS=str(stopped + 10), TRAINER_RESUME="force"))
    assert list(rest.losses) == [*range(stopped + 1, stopped + 11)]


def test_an_elastic_job_goes_on_without_a_node(start: Any, tmp_path: Path) -> None:
    """Ranks that wait in NCCL for the lost rank are ended, and the next rank has a GPU that works."""
    variables = {"TRAINER_OUT": str(tmp_path), "TRAINER_CHECKPOINT_STEPS": "5", "SLOW": "50"}
    running = begin(
        start, _SLOW, nodes="1:2", SLOW_RANK_1="50", TRAINER_LAST_CALL="30", **variables
    )
    first = speaker(running)
    (second,) = (one for one in running if one is not first)
    first.wait_for('"step": 12,', timeout=90)
    (rank,) = ranks_below(second.process.pid)
    os.killpg(second.process.pid, signal.SIGKILL)
    with suppress(psutil.NoSuchProcess):
        rank.kill()
    first.wait_for('"world_size": 1', timeout=60)
    after = len(first.read(first.out))
    while '"event": "step"' not in first.read(first.out)[after:]:
        assert first.process.poll() is None, first.read(first.stderr)
        time.sleep(0.05)
    first.process.send_signal(signal.SIGTERM)
    assert first.end(timeout=60).code == 143


class Large(synthetic.Task):
    """Layers that are large compared with cuBLAS's own memory."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 8192), nn.ReLU(), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 10)
        )


def test_the_dry_run_says_what_a_gpu_holds(start: Any) -> None:
    net = {"STEPS": "4", "GLOBAL_BATCH": "1024", "OPTIMIZER": "adamw", "EVAL_STEPS": "0"}
    case = Case(task="tests.gpu.test_faults:Large", both=net)
    trained = end(begin(start, case)).of("summary")[0]["peak_memory"]
    (said,) = end(begin(start, case, TRAINER_DRY_RUN="1")).of("dry_run")
    assert said["peak"] == pytest.approx(trained, rel=0.1)


def test_preflight_tests_the_gpu(start: Any) -> None:
    started = start("-m", "trainer.preflight", TRAINER_DEVICES=str(GPUS))
    assert started.process.wait(60) == 0
    said = started.read(started.out) + started.read(started.stderr)
    assert "device memory" in said
    assert "uncorrected ECC errors" in said


def test_a_profile_has_the_allocations(start: Any, tmp_path: Path) -> None:
    end(begin(start, Case(), TRAINER_PROFILE="2:3", TRAINER_OUT=str(tmp_path)))
    (snapshot,) = (tmp_path / "profile").glob("*.memory.pickle")
    traces = pickle.loads(snapshot.read_bytes())["device_traces"]  # noqa: S301  # our own file
    assert any(one["action"] == "alloc" for one in traces[0])
    (trace,) = (tmp_path / "profile").glob("*.json")
    assert '"cat": "kernel"' in trace.read_text(encoding="utf-8")
