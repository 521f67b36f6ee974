"""Runs send figures to the real libraries of three trackers; the test reads them back.

make trackers && pytest tests/trackers
"""

import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, ROOT, clean_environment, run_command
from trainer.report.history import events

ENVIRONMENT = ROOT / "build" / "trackers"
TRACKERS = ("mlflow", "trackio", "wandb")
PYTHON = str(ENVIRONMENT / "bin" / "python")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ENVIRONMENT / ".stamp").exists(), reason="no build/trackers; make trackers"
    ),
]


def variables(tracker: str, folder: Path, **more: str) -> dict[str, str]:
    """Return the variables of a run that its tracker keeps in a folder."""
    store = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "TRACKIO_DIR": str(folder),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "HF_HUB_OFFLINE": "1",
    }
    places = {"TRAINER_TRACKER": tracker, "TRAINER_OUT": str(folder / "run"), "TRAINER_LOG": "json"}
    return QUICK | store | places | more


def read_back(tracker: str, folder: Path) -> list[dict[str, Any]]:
    """Return the runs that a tracker has, as its own library reads them."""
    command = [PYTHON, "-m", "tests.trackers.read_back", tracker, str(folder)]
    done = run_command(command, timeout=120, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def send(tracker: str, folder: Path, *lines: Any, first: int = 0) -> None:
    """Append events to a run's file, and send the new ones, however slow the machine is."""
    (folder / "run").mkdir(exist_ok=True)
    with (folder / "run/metrics.jsonl").open("a") as file:
        file.writelines(
            json.dumps(line) + "\n" if isinstance(line, dict) else line for line in lines
        )
    command = [PYTHON, "-m", "trainer.report.trackers", tracker, str(folder / "run"), str(first)]
    environment = clean_environment(**variables(tracker, folder))
    subprocess.run(command, env=environment, input=b"120\n", check=True, timeout=150)


@pytest.fixture
def begin(start: Any) -> Any:
    """Start `python ARGUMENTS` in the trackers' environment."""
    return partial(start, python=PYTHON)


def curve(found: list[dict[str, Any]], kind: str, name: str) -> list[list[float]]:
    """Return the points of a figure from its events; for a repeated step, the first."""
    points: dict[int, float] = {}
    for event in found:
        if event["event"] == kind:
            points.setdefault(event["step"], event[name])
    return [[step, points[step]] for step in sorted(points)]


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_run_whose_rank_is_killed_is_one_run_with_each_step_once(
    tracker: str, begin: Any, tmp_path: Path
) -> None:
    more = {
        "TRAINER_TASK": "tests.faults.tasks:Slow",
        "SLOW": "100",
        "TRAINER_STEPS": "40",
        "TRAINER_CHECKPOINT_STEPS": "15",
        "PET_NPROC_PER_NODE": "2",
        "PET_MAX_RESTARTS": "1",
    }
    started = begin("-m", "trainer.launch", **variables(tracker, tmp_path, **more))
    started.wait_for('"step": 25,')
    started.ranks()[0].kill()
    ended = started.end()
    assert ended.code == 0, ended.stderr
    in_time = "TRAINER_TRACKER" not in ended.stderr
    if not in_time:
        send(tracker, tmp_path)
    found = list(events(tmp_path / "run"))
    steps = [event["step"] for event in found if event["event"] == "step"]
    assert len(steps) > 40  # some were repeated

    (run,) = read_back(tracker, tmp_path)
    assert run["parameters"]["mode"] == "ddp"
    assert run["parameters"]["steps"] in ("40", 40)
    points = run["points"]
    for name, field in {"loss": "loss", "learning_rate": "lr"}.items():
        assert sorted(points[f"train/{name}"]) == curve(found, "step", field)
    for name in ("loss", "accuracy"):
        assert sorted(points[f"eval/{name}"]) == curve(found, "eval", name)
    assert [step for step, _ in sorted(points["checkpoint/bytes"])] == [15, 30, 40]
    summary = found[-1] if found[-1]["event"] == "summary" else found[-2]
    assert points["summary/goodput"] == [[40, summary["goodput"]]]
    assert not in_time or run.get("state", "FINISHED") == "FINISHED"


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        assert kept, "nothing came"
        server.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_server_that_never_answers_holds_up_neither_steps_nor_the_end(
    tracker: str, begin: Any, tmp_path: Path
) -> None:
    with silent_server() as address:
        server = {
            "MLFLOW_TRACKING_URI": address,
            "TRACKIO_SERVER_URL": address,
            "TRACKIO_WRITE_TOKEN": "a",
            "WANDB_MODE": "online",
            "WANDB_BASE_URL": address,
            "WANDB_API_KEY": 40 * "a",
        }
        more = {"TRAINER_STEPS": "100000", "TRAINER_LOG_STEPS": "50"} | server
        started = begin("-m", "trainer", **variables(tracker, tmp_path, **more))
        started.wait_for('"step": 1000,')
        time.sleep(10)  # it has started, and waits for its server
        started.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        ended = started.end(timeout=60)
    assert ended.code == 143, ended.stderr
    assert time.monotonic() - began < 20
    warning = f"TRAINER_TRACKER={tracker}: did not take all figures within 5 s of the end"
    assert ended.stderr.count(warning) == 1
    seconds = [event["seconds"] for event in ended.of("step")]
    assert max(seconds) < 5  # of 50 steps of a few ms, here beside other tests


def test_a_server_that_refuses_costs_one_warning(begin: Any, tmp_path: Path) -> None:
    nowhere = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    ended = begin("-m", "trainer", **variables("mlflow", tmp_path, **nowhere)).end()
    assert ended.code == 0, ended.stderr
    assert ended.events[-1]["event"] == "summary"
    assert ended.stderr.count("TRAINER_TRACKER=mlflow: ") == 1
    assert ended.stderr.count("the run goes on; this is reported once") == 1
    # When the server is there, all is sent.
    send("mlflow", tmp_path)
    (run,) = read_back("mlflow", tmp_path)
    assert [step for step, _ in run["points"]["train/loss"]] == [*range(1, 13)]


def step(number: int, loss: float | None) -> dict[str, Any]:
    return {"event": "step", "time": float(number), "step": number, "loss": loss, "lr": 0.1}


def test_a_step_that_was_not_finite_is_sent_when_done_again_and_another_run_is_another(
    tmp_path: Path,
) -> None:
    launch = {"event": "launch", "time": 0.0, "task": "own:Task", "mode": "ddp"}
    failed = {"event": "error", "time": 9.0, "code": 72}
    send(
        "mlflow", tmp_path, launch, step(1, 0.5), step(2, None), step(2, 0.25), step(1, 9.0), failed
    )
    (tmp_path / "run/tracker-mlflow.json").unlink()  # as TRAINER_RESUME=never does
    size = (tmp_path / "run/metrics.jsonl").stat().st_size
    send("mlflow", tmp_path, launch, step(1, 0.75), first=size)
    runs = read_back("mlflow", tmp_path)
    losses = sorted(run["points"]["train/loss"] for run in runs)
    assert losses == [[[1, 0.5], [2, 0.25]], [[1, 0.75]]]
    assert {run["state"] for run in runs} == {"FAILED"}
