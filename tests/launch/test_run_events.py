"""A script's run folder says what happened, as with our trainer: events, verdict, goodput, figures."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, clean_environment, git
from tests.launch.test_commands import launch
from tests.launch.test_metrics import scrape
from tests.ranks import free_port
from tests.report.test_events import unknown
from trainer.report.history import events, read
from trainer.report.live.figures import FIGURES
from trainer.report.verdict import verdict
from trainer.runs import row_of

pytestmark = pytest.mark.slow

TRAINS = """
import json, os, sys, time
from pathlib import Path
state = Path(os.environ["MUSTER_CHECKPOINTS"]) / "step"
first = int(state.read_text()) if state.exists() else 0
last, fails = (int(text) for text in sys.argv[1:])
with open(os.environ["MUSTER_EVENTS"], "a") as file:
    def report(**event):
        print(json.dumps(event), file=file, flush=True)
    for step in range(first + 1, last + 1):
        time.sleep(0.05)
        report(step=step, steps=last, loss=1 / step, samples=8 * step, samples_per_s=160.0)
        if step % 5 == 0 and os.environ["RANK"] == "0":
            state.write_text(str(step))
            report(event="checkpoint", action="saved", step=step, path=str(state))
        if step == fails and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("no such row")
    report(event="eval", step=last, accuracy=0.75, loss=0.5)
    report(event="summary", parameters=7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINS, encoding="utf-8")
    return path


def test_a_run_that_finished_on_two_ranks(start: Any, script: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "--quiet", "-m", "a")
    commit = git(tmp_path, "rev-parse", "HEAD")
    for suffix in ("", "-dirty"):
        code, out, error = launch(
            start,
            "--nproc-per-node",
            "2",
            "../train.py",
            "6",
            "0",
            TRAINER_OUT=str(tmp_path / f"run{suffix}"),
            **({"MUSTER_CODE_COMMIT": commit + suffix} if suffix else {}),
        )
        assert code == 0, error
        run = tmp_path / f"run{suffix}"
        found = [one for one in events(run) if one["event"] != "attempt"]
        assert unknown(found, scores={"accuracy", "parameters"}) == set()
        launched, *middle, summary = found
        assert launched["command"] == "--nproc-per-node 2 ../train.py 6 0"
        assert launched["code_commit"] == commit + suffix
        wanted = {"program": "train", "nodes": 1, "world_size": 2, "attempt": 1}
        assert launched | wanted == launched
        assert [json.loads(line) for line in out.splitlines()] == middle
        steps = [one["step"] for one in middle if one["event"] == "step"]
        assert steps == [1, 2, 3, 4, 5, 6]  # rank 1's went nowhere
        wanted = {
            "steps": 6,
            "accuracy": 0.75,
            "parameters": 7,
            "checkpoint": f"{run}/checkpoints/step",
        }
        assert summary | wanted == summary
        history = read(run)
        assert verdict(history).text.startswith("accuracy 0.75, 6 steps in ")
        row = row_of(history, run)
        assert (row["task"], row["state"], row["result"]) == ("train", "finished", 0.75)
        assert sum(history.account.by_cause().values()) == pytest.approx(history.account.wall)
        assert (
            0.2 < history.account.spent["training"] < 0.9
        )  # six steps of 0.05 s, read every 0.2 s
    report = [sys.executable, "-m", "trainer.report", str(tmp_path / "run"), "-o", "r.html"]
    subprocess.run(report, cwd=tmp_path, env=clean_environment(), check=True, capture_output=True)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert (
        "PET_NPROC_PER_NODE=2 python -m trainer.launch --nproc-per-node 2 ../train.py 6 0" in page
    )
    assert commit in page


def test_a_run_that_failed_and_went_on_and_one_that_failed_for_good(
    start: Any, script: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    variables = {"TRAINER_OUT": str(run), "PET_MAX_RESTARTS": "1"}
    code, _, error = launch(start, str(script), "15", "14", **variables)
    assert code == 0, error
    history = read(run)
    assert [one.exit for one in history.attempts] == [70, 0]
    assert [one.launch["attempt"] for one in history.attempts] == [1, 2]
    # Steps 11 to 14 again, of 0.05 s each. Two steps would be seen in a single read, every 0.2 s.
    assert 0.1 < history.account.spent["repeated"] < 0.6
    code, _, error = launch(start, str(script), "40", "17", **variables)
    assert code == 0, error  # it resumes at 15, and fails once
    code, _, error = launch(start, str(script), "60", "60", **variables | {"PET_MAX_RESTARTS": "0"})
    assert code == 70
    ended = verdict(read(run))
    assert ended.state == "failed"
    assert ended.text.startswith("exit 70 at step 60 of 60: rank 0: ")
    assert list(events(run))[-2]["event"] == "error"


def test_a_run_that_was_stopped_and_one_that_has_no_steps(
    start: Any, script: Path, tmp_path: Path
) -> None:
    out = {"TRAINER_OUT": str(tmp_path / "run"), "PET_NPROC_PER_NODE": "1"}
    started = start("-m", "trainer.launch", str(script), "1000", "0", **out)
    started.wait_for('"step": 3,')
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(30) == 143
    assert verdict(read(tmp_path / "run")).text.startswith("stopped by a signal at step ")
    code, out_text, _ = launch(start, "--", "echo", "hello", TRAINER_OUT=str(tmp_path / "other"))
    assert (code, out_text) == (0, "hello\n")
    assert verdict(read(tmp_path / "other")).text.startswith("exit 0, no step in ")


def test_the_launcher_serves_the_figures_of_the_trainers_names(
    start: Any, script: Path, tmp_path: Path
) -> None:
    port = free_port()
    out = {"TRAINER_OUT": str(tmp_path / "run"), "PET_NPROC_PER_NODE": "2"}
    started = start(
        "-m", "trainer.launch", str(script), "1000", "0", **out, TRAINER_METRICS_PORT=str(port)
    )
    started.wait_for('"action": "saved"')
    seen = scrape(port)
    assert 5 <= seen["muster_step"] < 1000
    assert seen["muster_samples"] == 8 * seen["muster_step"]
    assert seen["muster_steps"] == 1000
    assert seen["muster_checkpoints_total saved"] >= 1
    assert seen["muster_faults_total stopped"] == 0
    assert seen["muster_disk_free_bytes"] > 0
    named = {one.name for one in FIGURES}
    assert len(named & seen.keys()) >= 10
    started.process.send_signal(signal.SIGTERM)
    started.process.wait(30)


SERVES = """
import http.server, json, os, sys, threading
class Own(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"mine 1\\n")
port = int(os.environ["TRAINER_METRICS_PORT"])
server = http.server.HTTPServer(("127.0.0.1", port), Own)
threading.Thread(target=server.serve_forever, daemon=True).start()
open(os.environ["MUSTER_EVENTS"], "a").write(json.dumps({"step": 1}) + "\\n")
sys.stdin.read() if False else threading.Event().wait()
"""


def test_a_port_that_the_program_serves_is_left_to_it(start: Any, tmp_path: Path) -> None:
    port = free_port()
    command = ("--", sys.executable, "-c", SERVES)
    variables = {"TRAINER_METRICS_PORT": str(port), "PET_NPROC_PER_NODE": "1"}
    started = start("-m", "trainer.launch", *command, **variables)
    started.wait_for(f"TRAINER_METRICS_PORT={port}: Address already in use; the launcher leaves")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert answer.read() == b"mine 1\n"
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(30) == 143


HOSTILE = """
import os, sys, time
name = os.environ["MUSTER_EVENTS"]
with open(name, "ab") as file:
    for part in (b"x" * 5_000_000 + b"\\n", b"\\xff\\n" * 1000, b'{"step": 1, "a": ' + b"[" * 50_000):
        file.write(part)
        file.flush()
        time.sleep(0.3)
os.unlink(name)
os.mkdir(name)
time.sleep(0.3)
os.rmdir(name)
with open(name, "a") as file:
    for number in range(200):
        print(f'{{"event": "eval", "step": 1, "score {number}": 1}}', file=file)
    print('{"step": 2, "loss": 0.5}', file=file)
time.sleep(0.3)
print("went on")
"""


def test_a_hostile_script_costs_a_message_and_not_the_run(start: Any, tmp_path: Path) -> None:
    script, port = tmp_path / "hostile.py", free_port()
    script.write_text(HOSTILE, encoding="utf-8")
    out = {"TRAINER_OUT": str(tmp_path / "run"), "PET_NPROC_PER_NODE": "1"}
    began = time.monotonic()
    code, text, error = launch(start, str(script), **out, TRAINER_METRICS_PORT=str(port))
    assert code == 0, error
    assert time.monotonic() - began < 30
    assert "went on" in text
    assert error.count("MUSTER_EVENTS") == 2  # the first line, and the number of lines
    assert max(len(line) for line in error.splitlines()) < 500
    assert [one["step"] for one in events(tmp_path / "run") if one["event"] == "step"] == [2]
    assert os.path.getsize(tmp_path / "run/metrics.jsonl") < 100_000  # noqa: PTH202


def test_the_launcher_in_a_zip_reads_them_too(start: Any, script: Path, tmp_path: Path) -> None:
    from k8s.render.launch_zip import build

    packed = tmp_path / "launch.pyz"
    packed.write_bytes(build())
    started = start(
        "-I", str(packed), "--nproc-per-node", "1", str(script), "6", "0", TRAINER_OUT="../run",
        TRAINER_METRICS_PORT=str(free_port()),
    )  # fmt: skip
    assert started.process.wait(60) == 0, started.read(started.stderr)
    assert verdict(read(tmp_path / "run")).state == "finished"
    assert str(ROOT) not in started.read(started.stderr)
