"""A run's metrics, scraped while it trains, and its curves, read back from the event files."""

import os
import shutil
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import QUICK
from tests.ranks import free_port, run_ranks
from trainer.report.live.figures import CHECKPOINTS, EVALUATION, FIGURES, SPENT
from trainer.report.tensorboard import writing

pytestmark = pytest.mark.slow

TRAINED = {
    "checkpoint_steps": "4",
    "eval_steps": "8",
    "schedule": "constant",
    "tensorboard": "true",
}
# What one rank on a CPU has no figure for, without text.
ABSENT = {"muster_tokens_per_second", "muster_peak_share"}
ABSENT |= {"muster_slowest_rank_seconds", "muster_middle_rank_seconds"}


def scrape(port: int) -> dict[str, float]:
    """Return the value of every sample, by its name and its label's value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {" ".join([one.name, *one.labels.values()]): one.value for one in samples}


def curve(folder: Path, tag: str) -> dict[int, float]:
    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {point.step: point.value for point in found.Scalars(tag)}


def test_figures_are_served_and_curves_are_written(start: Any, tmp_path: Path) -> None:
    run, port = tmp_path / "run", free_port()
    variables = {f"TRAINER_{name.upper()}": value for name, value in TRAINED.items()}
    started = start(
        "-m",
        "trainer",
        **(QUICK | variables | {"TRAINER_STEPS": "100000"}),
        TRAINER_OUT=str(run),
        TRAINER_METRICS_PORT=str(port),
    )
    started.wait_for('"step": 20,')
    until = time.monotonic() + 30
    wanted = {*(figure.name for figure in FIGURES), f"{CHECKPOINTS[0]} saved"} - ABSENT
    while not wanted <= (seen := scrape(port)).keys():
        assert time.monotonic() < until, seen
    started.process.send_signal(signal.SIGTERM)
    ended = started.end()
    assert ended.code == 143, ended.stderr
    step = int(seen["muster_step"])
    (at_the_time,) = [event for event in ended.of("step") if event["step"] == step]
    assert seen["muster_loss"] == at_the_time["loss"]
    assert seen["muster_samples"] == at_the_time["samples"] == 32 * step
    assert seen[f"{EVALUATION[0]} accuracy"] in [e["accuracy"] for e in ended.of("eval")]
    spent = {name: value for name, value in seen.items() if name.startswith(SPENT[0])}
    assert spent.keys() >= {f"{SPENT[0]} {cause}" for cause in ("training", "start", "evaluation")}
    assert sum(spent.values()) == pytest.approx(seen["muster_wall_seconds"], rel=0.01)
    assert 1 <= seen[f"{CHECKPOINTS[0]} saved"] <= len(ended.of("checkpoint"))
    assert seen["process_resident_memory_bytes"] > 2**26

    last = ended.of("step")[-1]["step"]
    shutil.rmtree(run / "checkpoints" / f"step-{last:08d}")  # so that steps are repeated
    run_ranks(1, run, task="synthetic", steps=str(last + 2), resume="force", **TRAINED)
    losses = curve(run, "train/loss")
    assert list(losses) == list(range(1, last + 3))
    assert losses[step] == pytest.approx(at_the_time["loss"])
    assert {event["step"] for event in ended.of("eval")} <= curve(run, "eval/accuracy").keys()
    assert all(value > 0 for value in curve(run, "checkpoint/seconds").values())


def test_a_run_resumed_within_a_second_keeps_its_newest_steps(tmp_path: Path) -> None:
    for steps in (range(1, 4), range(3, 6)):
        with writing(tmp_path / "tensorboard") as take:
            for step in steps:
                take({"event": "step", "time": time.time(), "step": step, "loss": float(step)})
        if steps.start == 1:  # the first process's number is the one that is read last
            (file,) = (tmp_path / "tensorboard").iterdir()
            file.rename(str(file).replace(f".{os.getpid()}.", ".99999999."))
    assert list(curve(tmp_path, "train/loss")) == [1, 2, 3, 4, 5]


def test_a_run_resumed_with_an_evaluation_keeps_the_loss_of_that_step(tmp_path: Path) -> None:
    for first, steps in (("step", range(1, 5)), ("eval", range(3, 6))):
        with writing(tmp_path / "tensorboard") as take:
            if first == "eval":  # a checkpoint of step 2 whose evaluation had not ended
                take({"event": "eval", "time": 0.0, "step": 2, "loss": 0.5, "metric": "loss"})
            for step in steps:
                value = float(step if first == "step" else 10 * step)
                take({"event": "step", "time": time.time(), "step": step, "loss": value})
    assert curve(tmp_path, "train/loss") == {1: 1.0, 2: 2.0, 3: 30.0, 4: 40.0, 5: 50.0}


def test_steps_that_are_repeated_after_going_back_replace_the_earlier_ones(tmp_path: Path) -> None:
    with writing(tmp_path / "tensorboard") as take:
        for steps, scale in ((range(1, 6), 1.0), (range(3, 5), 10.0)):
            for step in steps:
                take({"event": "step", "time": time.time(), "step": step, "loss": scale * step})
            take({"event": "fault", "time": time.time(), "kind": "rolled_back", "step": 5, "to": 2})
    assert curve(tmp_path, "train/loss") == {1: 1.0, 2: 2.0, 3: 30.0, 4: 40.0}


def test_a_port_in_use_costs_a_warning_and_nothing_is_loaded_unasked(start: Any) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104
        taken.listen()
        port = taken.getsockname()[1]
        ended = start("-m", "trainer", **QUICK, TRAINER_METRICS_PORT=str(port)).end()
    assert ended.code == 0, ended.stderr
    assert f"TRAINER_METRICS_PORT={port}: Address already in use; nothing is served" in ended.stderr
    loaded = "{'tensorboard', 'prometheus_client'} & set(sys.modules)"
    assert (
        start("-c", f"import sys, trainer.engine.loop; sys.exit(str({loaded} or ''))")
        .end()
        .stderr.strip()
        == ""
    )
