"""Runs on one machine, as a user or a container starts them: result, output, exit codes."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import QUICK, ROOT, Started, clean_environment
from tests.ranks import free_port, run_ranks

pytestmark = pytest.mark.slow

OWN_TASK = """
import os, sys
import torch
from trainer.tasks.synthetic import Task as Synthetic

class Own(Synthetic):
    steps = 0
    def loss(self, outputs, targets):
        if not torch.is_grad_enabled():  # no step
            return super().loss(outputs, targets)
        self.steps += 1
        print("I am", os.environ["RANK"], file=sys.stderr)
        # What raises in the first step is wrong for good: 64.
        if self.steps > 1 and os.environ.get("RANK", "0") == os.environ.get("FAILING_RANK"):
            raise ValueError("out of order")
        return super().loss(outputs, targets)
"""


def test_an_empty_environment_trains_digits_in_one_process(start: Any) -> None:
    ended = start("-m", "trainer").end()
    assert ended.code == 0, ended.stderr
    launch, summary = ended.events[0], ended.events[-1]
    assert (launch["event"], launch["mode"], launch["why"]) == (
        "launch",
        "single",
        "auto: one rank",
    )
    assert summary["event"] == "summary"
    assert summary["accuracy"] >= 0.97
    assert {"steps", "samples_per_s", "checkpoint", "mode", "world_size"} <= summary.keys()
    assert {"step", "epoch", "loss", "grad_norm", "lr", "samples", "samples_per_s"} <= ended.of(
        "step"
    )[0].keys()


def test_plain_torchrun_reads_the_same_contract(start: Any) -> None:
    port = {"PET_NPROC_PER_NODE": "2", "PET_MASTER_PORT": str(free_port())}
    started = start("-m", "torch.distributed.run", "-m", "trainer", **port, **QUICK)
    ended = started.end()
    assert ended.code == 0, ended.stderr
    assert ended.of("launch")[0]["world_size"] == 2
    assert ended.of("summary")[0]["mode"] == "ddp"
    file = Path(started.out.name).parent / "runs/synthetic/metrics.jsonl"
    assert [json.loads(line) for line in file.read_text().splitlines()] == ended.events


def quick(folder: Path, source: str, **more: str) -> dict[str, str]:
    """Return the variables of a quick job of the task `Own` with this source, and more variables."""
    (folder / "own.py").write_text(source, encoding="utf-8")
    return QUICK | {"TRAINER_TASK": "own:Own", "PYTHONPATH": f"{folder}:{ROOT}"} | more


def start_failing(start: Any, folder: Path, source: str) -> Started:
    """Start two ranks of a task with this source, of which rank 1 raises."""
    own = quick(folder, source, FAILING_RANK="1", PET_NPROC_PER_NODE="2")
    started: Started = start("-m", "trainer.launch", **own)
    return started


def test_a_rank_that_raises_is_reported_once_and_is_70(start: Any, tmp_path: Path) -> None:
    started = start_failing(start, tmp_path, OWN_TASK)
    ended = started.end()
    assert ended.code == 70
    assert ended.stderr.count("[rank 1] Traceback (most recent call last)") == 1
    assert {"[rank 0] I am 0", "[rank 1] I am 1"} <= {*ended.stderr.splitlines()}
    assert ended.stderr.count("ValueError: out of order") == 2  # its last line, and in the verdict
    assert "launch: rank 1: ValueError: out of order (exit 70)" in ended.stderr
    assert ended.of("error")[0]["code"] == 69  # rank 0 lost its peer, which is not the cause
    # a pod's log may go with its pod (kubeflow/trainer 3419, 877), so the run folder has it too
    (log,) = (Path(started.out.name).parent / "runs").glob("*/logs/*.log")
    kept = log.read_text(encoding="utf-8").splitlines()
    shown = ended.stderr.splitlines() + started.read(started.out).splitlines()
    assert kept[0].startswith("--- ")
    assert sorted(kept[1:]) == sorted(shown)


SLOW_END = """
import atexit, os, time

if os.environ["RANK"] == os.environ["FAILING_RANK"]:
    atexit.register(time.sleep, 60)  # its connections are closed by then
"""


def test_a_rank_that_raises_is_the_cause_though_its_peer_ends_first(
    start: Any, tmp_path: Path
) -> None:
    """A busy machine once gave exit 69 without the error that was raised."""
    began = time.monotonic()
    ended = start_failing(start, tmp_path, SLOW_END + OWN_TASK).end()
    assert time.monotonic() - began < 40  # its peer did not wait until it ended
    assert ended.code == 70
    assert ended.stderr.count("[rank 1] Traceback (most recent call last)") == 1
    assert "launch: rank 1: ValueError: out of order (exit 70)" in ended.stderr


def test_codes_that_may_be_retried_are_shifted_where_a_controller_judges_by_range(
    start: Any, tmp_path: Path
) -> None:
    own = quick(tmp_path, OWN_TASK, FAILING_RANK="0", MUSTER_RETRY_EXIT_OFFSET="128")
    alone = start("-m", "trainer.launch", **own).end()
    assert alone.code == 198
    assert "\nI am 0\n" in alone.stderr  # a job of one rank needs no prefix


ELASTIC = {
    "PET_NNODES": "1:2",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "127.0.0.1:1",
    "TRAINER_MODE": "ddp",
}
WRONG = [
    (ELASTIC | {"TRAINER_MESH": "dp_replicate=2"}, "multiplies to 2, but the world size is 1"),
    ({"TRAINER_MODE": "dpd"}, "TRAINER_MODE='dpd': no such mode"),
    # final, so no offset is added to the code
    ({"TRAINER_MODE": "dpd", "MUSTER_RETRY_EXIT_OFFSET": "128"}, "TRAINER_MODE='dpd'"),
    ({"TRAINER_GLOBAL_BATCH": "7", "PET_NPROC_PER_NODE": "2"}, "does not divide over 2"),
    ({"PET_NNODES": "0"}, "PET_NNODES='0'"),
    ({"MUSTER_RETRY_EXIT_OFFSET": "x"}, "MUSTER_RETRY_EXIT_OFFSET='x': must be 0 to 128"),
    ({"TRAINER_TASK": "no.such:Task"}, "TRAINER_TASK='no.such:Task': no module named 'no'"),
]


def test_a_bad_configuration_is_64_in_one_line(start: Any) -> None:
    runs = [start("-m", "trainer.launch", **environment) for environment, _ in WRONG]
    for run, (_, message) in zip(runs, WRONG, strict=True):
        ended = run.end()
        assert ended.code == 64, ended.stderr
        assert len([line for line in ended.stderr.splitlines() if message in line]) == 1, message
        assert "Traceback" not in ended.stderr
        assert ended.of("step") == []


@pytest.mark.parametrize(("module", "ranks"), [("trainer", 1), ("trainer.launch", 2)])
def test_sigterm_saves_and_the_next_run_ends_where_an_undisturbed_one_does(
    module: str, ranks: int, start: Any, tmp_path: Path
) -> None:
    settings = {"task": "synthetic", "steps": "400"}
    whole = run_ranks(ranks, tmp_path / "whole", **settings)
    started = start(
        "-m",
        module,
        PET_NPROC_PER_NODE=str(ranks),
        TRAINER_OUT=str(tmp_path / "parts"),
        **(QUICK | {"TRAINER_STEPS": "400"}),
    )
    started.wait_for('"step": 30,')
    started.process.send_signal(signal.SIGTERM)
    time.sleep(0.01)
    started.process.send_signal(signal.SIGTERM)  # changes nothing
    started.wait_for('"kind": "stopped"')
    started.process.send_signal(signal.SIGTERM)  # nor does one on its way out
    stopped = started.end()
    assert stopped.code == 143, stopped.stderr
    assert stopped.of("fault")[0]["kind"] == "stopped"
    step = stopped.of("fault")[0]["step"]
    assert stopped.of("step")[-1]["step"] == step < 400
    both = run_ranks(ranks, tmp_path / "parts", **settings)
    assert [event["step"] for event in both if event.get("action") == "resumed"] == [step]
    assert losses(both) == losses(whole)  # bit by bit


def losses(events: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(event["step"], event["loss"]) for event in events if event["event"] == "step"]


def test_ctrl_c_leaves_no_process_behind(start: Any) -> None:
    settings = QUICK | {"TRAINER_STEPS": "100000", "PET_NPROC_PER_NODE": "2"}
    # 143 is not shifted: 271 would be cut to 15, which a PyTorchJob treats as permanent
    started = start("-m", "trainer.launch", MUSTER_RETRY_EXIT_OFFSET="128", **settings)
    started.wait_for('"step": 5,')
    family = started.family()
    names = [process.name() for process in family[1:]]
    assert sorted(names) == ["fork server", "rank 0", "rank 1", "store"]
    os.killpg(started.process.pid, signal.SIGINT)  # what a terminal sends
    assert started.end().code == 143
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


SLOW_TASK = """
import time
import torch
from trainer.tasks.synthetic import Task

class Own(Task):
    def loss(self, *arguments):
        time.sleep(600 if torch.is_grad_enabled() else 0)
        return super().loss(*arguments)
"""
PARTED_TASK = """
import time
from trainer.tasks.synthetic import Task

class Slowly(list):
    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)

class Own(Task):
    def data(self, *, train):
        whole = super().data(train=train)
        return Slowly(zip(whole.inputs, whole.targets))
"""


def test_loader_workers_outlive_a_sigterm_to_their_whole_group(start: Any, tmp_path: Path) -> None:
    """torchrun signals the group, and the ranks need another batch to agree where to stop."""
    own = quick(tmp_path, PARTED_TASK, TRAINER_WORKERS="2", TRAINER_STEPS="100000")
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "trainer")
    started = start(*launcher, PET_MASTER_PORT=str(free_port()), **own)
    started.wait_for('"step": 5,')
    family = started.family()
    assert len(family) > 2 * (1 + 2)
    started.process.send_signal(signal.SIGTERM)
    ended = started.end()
    assert ended.of("fault"), ended.stderr
    assert ended.code == 1  # torchrun's exit code after any signal
    assert ended.of("checkpoint")[-1]["step"] == ended.of("fault")[0]["step"], ended.stderr
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_a_killed_process_leaves_no_loader_behind(start: Any, tmp_path: Path) -> None:
    """The launcher kills what a rank leaves; without the launcher, workers end with their rank."""
    endless = quick(tmp_path, PARTED_TASK, TRAINER_WORKERS="1", TRAINER_STEPS="100000")
    runs = {
        killed: start("-m", "trainer.launch", **endless)
        for killed in ("rank 0", "fork server", "launcher")
    }
    for killed, started in runs.items():
        started.wait_for('"step": 5,')
        family = started.family()
        assert len(family) > 3
        named = {process.name(): process for process in family[1:]} | {"launcher": family[0]}
        named[killed].kill()
        code = -signal.SIGKILL if killed == "launcher" else 70
        assert started.end(timeout=30).code == code, killed
        assert psutil.wait_procs(family, timeout=20)[1] == [], killed


def test_a_run_in_a_long_step_can_be_ended(start: Any, tmp_path: Path) -> None:
    """After Ctrl-C twice, with and without the launcher, and after a SIGTERM that takes too long."""
    own = quick(tmp_path, SLOW_TASK)
    launched = start("-m", "trainer.launch", **own)
    alone = start("-m", "trainer", **own)
    stopped = start("-m", "trainer.launch", PET_SHUTDOWN_TIMEOUT="1", **own)
    runs = (launched, alone, stopped)
    for started in runs:
        started.wait_for('"event": "launch"')
    time.sleep(1)
    families = [started.family() for started in runs]
    stopped.process.send_signal(signal.SIGTERM)
    for started in (launched, alone):
        started.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert launched.process.poll() is None  # it waits for the step
    for started in (launched, alone):
        started.process.send_signal(signal.SIGINT)
    endings = [started.end(timeout=20) for started in runs]
    assert [ended.code for ended in endings] == [70, 70, 70]
    assert "interrupted a second time, before the checkpoint" in endings[1].stderr
    for family in families:
        assert psutil.wait_procs(family, timeout=10)[1] == []


def test_a_finished_run_stays_finished_and_never_starts_over_unasked(tmp_path: Path) -> None:
    settings = {"task": "synthetic", "steps": "12"}
    first = run_ranks(1, tmp_path, **settings)
    again = run_ranks(1, tmp_path, **settings)[len(first) :]
    assert losses(again) == []
    assert again[-1]["accuracy"] == first[-1]["accuracy"]
    over = run_ranks(1, tmp_path, resume="never", **settings)[len(first) + len(again) :]
    assert losses(over) == losses(first)
    refused = run_ranks(1, tmp_path, code=64, seed="1", **settings)
    assert "TRAINER_SEED 1, was 0" in refused[-1]["message"]


def test_divergence_is_72(tmp_path: Path) -> None:
    events = run_ranks(1, tmp_path, code=72, lr="1e30", clip_norm="0", warmup_steps="0", steps="9")
    assert events[-1]["event"] == "error"
    assert "try a smaller TRAINER_LR" in events[-1]["message"]


def test_on_a_terminal_there_is_a_bar_and_no_json(tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer"],
        cwd=tmp_path,
        env=clean_environment(TERM="xterm", COLUMNS="120", **QUICK),
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(main, 65536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) == 0
    text = shown.decode()
    for part in (
        "launch",
        "world size",
        "training",
        "12/12",
        "loss",
        "samples/s",
        "summary",
        "accuracy",
    ):
        assert part in text
    assert '{"event"' not in text
