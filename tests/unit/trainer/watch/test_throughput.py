"""Tokens and operations per second: for which tasks they are known, and the share of a device's peak."""

import logging
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.ranks import run_ranks
from trainer import tasks
from trainer.config.settings import Settings
from trainer.distributed.runtime import Runtime
from trainer.engine.run import example
from trainer.plan.sizing import size
from trainer.watch.straggler import Waits, Work, per_step, spread
from trainer.watch.throughput import Throughput, peak_of, throughput_of


def of_task(name: str) -> Throughput:
    settings = Settings(task=name)
    sizing = size(settings, 1, label=str, uneven=False)
    runtime = Runtime(0, 0, torch.device("cpu"), "none", sizing, None, None, 0)
    task = tasks.load(settings)
    data = tasks.data(task, settings, train=True)
    two = partial(example, data, settings, 2)
    return throughput_of(task.model(), data, read=two, settings=settings, runtime=runtime)


@pytest.mark.parametrize(("task", "tokens"), [("digits", None), ("charlm-gpt", 64)])
def test_a_window_of_text_has_tokens_and_an_image_has_none(task: str, tokens: int | None) -> None:
    found = of_task(task)
    assert found.tokens == tokens
    assert found.flops
    assert found.peak is None  # of a CPU


@pytest.mark.slow
def test_what_cannot_be_counted_is_said_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="trainer"):
        found = of_task("seqclass")
    assert found == Throughput(tokens=1.0)
    (message,) = caplog.messages
    assert message.startswith(
        "the steps' floating-point operations are not counted: NotImplemented"
    )


def test_the_rates_are_of_the_weight_in_a_time() -> None:
    assert Throughput().rates(10, 2) == {}
    assert Throughput(64, 1e6, 4e6).rates(10, 2) == {
        "tokens_per_s": 320,
        "flops_per_s": 5e6,
        "peak_share": 1.25,
    }


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H200", "tf32", 494.7e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("NVIDIA L4", "fp16", 121e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA L40", "bf16", None),
        ("NVIDIA H100 80GB HBM3", "fp64", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
    ],
)
def test_the_peak_is_that_of_the_devices_name(name: str, precision: str, peak: float) -> None:
    assert peak_of(name, precision, 1) == peak
    assert peak_of(name, precision, 8) == (8 * peak if peak else None)


def test_how_far_the_ranks_are_apart() -> None:
    before = Work(5, 10.0, 1.0)
    after = [Work(15, 20.0, own) for own in (2.0, 9.0, 3.0)]
    work = [one - before for one in after]
    assert spread(work) == pytest.approx({"slowest_s": 0.8, "middle_s": 0.2})
    assert per_step(work[0]) == pytest.approx({"own_s": 0.1, "wait_s": 0.9})
    assert spread([Work(), Work(5, 1.0, 0.5)]) == {}  # a rank without a step has no time per step
    assert Waits().update(work) == pytest.approx(6.0)  # waits of 9, 2 and 8 s
    # Two ranks; one was stopped most of the time, which is neither its work nor its wait.
    assert Waits().update([Work(5, 8.0, 1.0), Work(5, 1.0, 1.0)]) == 7.0
    assert Waits().update([Work(), Work()]) == 0.0


@pytest.mark.parametrize(
    ("seconds", "waited", "counted"),
    [
        (10, [2.1], [2.1]),
        (10, [1.9], [0]),  # it may be noise
        (2, [0.7, 0.7], [0, 1.4]),  # of a short time, as much as of four seconds
        (2, [0.3, 0.3, 0.3], [0, 0, 0]),
        (10, [1.9, 1.9, 0], [0, 3.8, 0]),  # a wait in two windows
        (10, [1.0, 6.0, 1.5, 0.9], [0, 7.0, 1.5, 0]),  # its ends
        (10, [1.9, 0.9, 1.9], [0, 0, 0]),  # not in a row
        (10, [6.0, 0.9, 1.9], [6.0, 0, 0]),
    ],
)
def test_a_wait_counts_in_each_window_that_it_is_in(
    seconds: float, waited: list[float], counted: list[float]
) -> None:
    waits = Waits()
    for one, count in zip(waited, counted, strict=True):
        work = [Work(5, seconds, seconds), Work(5, seconds, seconds - one)]
        assert waits.update(work) == pytest.approx(count)


@pytest.mark.slow
def test_a_run_reports_the_rates_of_all_ranks(tmp_path: Path) -> None:
    """For the same steps, two ranks have as many tokens and operations per sample as one rank."""
    found = {}
    for world_size in (1, 2):
        folder = tmp_path / str(world_size)
        events = run_ranks(world_size, folder, task="charlm-gpt", steps="3", eval_steps="0")
        steps = [event for event in events if event["event"] == "step"]
        found[world_size] = {
            (
                round(step["tokens_per_s"] / step["samples_per_s"], 3),
                round(step["flops_per_s"] / step["samples_per_s"]),
            )
            for step in steps
        }
        assert len(steps) == 3
    assert found[1] == found[2]
    ((tokens, flops),) = found[1]
    assert tokens == 64
    assert flops > 1e6
