"""How the launcher stops other programs: none loses what it still saves, and none counts as done."""

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.launch.test_commands import launch
from tests.ranks import free_port
from trainer.report.history import read
from trainer.why import why

pytestmark = pytest.mark.slow

WAITS = """
import logging, os, signal, sys, time
rank = int(os.environ["RANK"])
def save(seconds):
    print("saving", flush=True)
    time.sleep(seconds)
    open(os.path.join(os.environ["MUSTER_CHECKPOINTS"], "saved"), "w").close()
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
def wait():
    print("ready", flush=True)
    while not asked:
        time.sleep(0.02)
"""
PROGRAMS = {
    "its handler restores the default": """
def once(*_):
    asked.append(True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGTERM, once)
wait()
if rank == 0:
    save(1)
sys.exit(143)
""",
    "it ends with 0": "wait(); save(0)",
    "it still needs its workers": """
import subprocess
worker = subprocess.Popen(["sleep", "60"])
wait()
time.sleep(0.5)
if worker.poll() is None:
    save(0)
worker.kill()
sys.exit(143)
""",
    "it has caught an error": """
if rank == 0:
    try:
        raise ConnectionError("the tracker is off")
    except ConnectionError:
        logging.exception("training goes on")
wait()
if rank == 0:
    save(1)
sys.exit(143)
""",
}


def stop(started: Any, *, ranks: int, by: int = signal.SIGTERM) -> int:
    while started.read(started.out).count("ready") < ranks:
        assert started.process.poll() is None, started.read(started.stderr)
        time.sleep(0.05)
    started.process.send_signal(by)
    return int(started.process.wait(30))


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_saves_at_sigterm_has_saved_and_ends_with_143(
    start: Any, tmp_path: Path, program: str, *, shell: bool
) -> None:
    script = tmp_path / "saves.py"
    script.write_text(WAITS + PROGRAMS[program], encoding="utf-8")
    command = [sys.executable, str(script)]
    command = ["sh", "-c", f"{' '.join(command)}; echo done"] if shell else command
    variables = {"PET_NPROC_PER_NODE": "2", "TRAINER_OUT": str(tmp_path / "run")}
    started = start("-m", "trainer.launch", "--", *command, **variables)
    assert stop(started, ranks=2) == 143, started.read(started.stderr)
    assert (tmp_path / "run/checkpoints/saved").exists()


def test_timeout_in_a_shell_gets_sigterm_too(start: Any, tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(f"{WAITS}\nwait(); save(0)", encoding="utf-8")
    command = ("--", "sh", "-c", f"timeout 60 {sys.executable} {script}; echo done")
    started = start("-m", "trainer.launch", *command, TRAINER_OUT=str(tmp_path / "run"))
    assert stop(started, ranks=1) == 143, started.read(started.stderr)
    assert (tmp_path / "run/checkpoints/saved").exists()


def test_a_process_for_which_nobody_waits_does_not_hold_up_the_end(start: Any) -> None:
    # As in a container whose process 1 is `sleep infinity`.
    keeps = (
        "import ctypes, signal, subprocess, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); "
        "launcher = subprocess.Popen([sys.executable, *sys.argv[1:]]); "
        "signal.signal(signal.SIGTERM, lambda *_: launcher.terminate()); sys.exit(launcher.wait())"
    )
    command = ("-m", "trainer.launch", "--", "sh", "-c", "echo ready; sleep 60; echo done")
    assert stop(start("-c", keeps, *command, PYTHONPATH=str(ROOT)), ranks=1) == 143


ASKED_BEFORE = """
if rank == 1:
    print("ready", flush=True)
    sys.exit(143)
def once(*_):
    asked.append(True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("ready", flush=True)
signal.signal(signal.SIGTERM, once)
while not asked:
    time.sleep(0.02)
save(1)
sys.exit(143)
"""


def test_a_rank_that_was_asked_to_end_gets_no_second_sigterm(start: Any, tmp_path: Path) -> None:
    variables = {"PET_NPROC_PER_NODE": "2", "TRAINER_OUT": str(tmp_path / "run")}
    command = ("--", sys.executable, "-c", WAITS + ASKED_BEFORE)
    started = start("-m", "trainer.launch", *command, **variables)
    assert stop(started, ranks=2) == 143, started.read(started.stderr)
    assert (tmp_path / "run/checkpoints/saved").exists()


def test_a_rank_that_is_killed_because_it_is_late_says_so(start: Any, tmp_path: Path) -> None:
    script = tmp_path / "stays.py"
    script.write_text(f"{WAITS}\nwait(); time.sleep(60)", encoding="utf-8")
    variables = {"PET_SHUTDOWN_TIMEOUT": "1", "TRAINER_OUT": str(tmp_path / "run")}
    started = start("-m", "trainer.launch", str(script), **variables)
    assert stop(started, ranks=1) == 70
    said = "Signal 9 (SIGKILL); it still ran 1 s after SIGTERM (PET_SHUTDOWN_TIMEOUT)"
    assert said in started.read(started.stderr)
    assert "(slow stop)" in str(why(read(tmp_path / "run")))


def test_after_nohup_a_closed_terminal_stops_nothing(start: Any, tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text("import time; print('ready', flush=True); time.sleep(2)", encoding="utf-8")
    nohup = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = ("-m", "trainer.launch", str(script))
    assert stop(start("-c", nohup, *command, PYTHONPATH=str(ROOT)), ranks=1, by=signal.SIGHUP) == 0


CAUGHT = """
import logging, os, signal, sys, time
if os.environ["RANK"] == "0":
    try:
        raise ConnectionError("the tracker is off")
    except ConnectionError:
        logging.exception("training goes on")
    time.sleep(60)
time.sleep(1)
{}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("os.kill(os.getpid(), 9)", 70), ("sys.exit(143)", 143), ("sys.exit(3)", 69)],
)
def test_an_error_that_was_caught_is_not_the_cause(start: Any, end: str, code: int) -> None:
    variables = {"PET_NPROC_PER_NODE": "2", "MUSTER_EXIT_CODES": "3=69"}
    command = ("--", sys.executable, "-c", CAUGHT.format(end))
    ended, _, error = launch(start, *command, **variables)
    assert ended == code, error
    assert "launch: rank 0" not in error


def test_a_program_may_start_our_trainer(start: Any) -> None:
    trains = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-m', 'trainer']))"
    variables = {"TRAINER_STEPS": "2", "TRAINER_EVAL_STEPS": "0", "PYTHONPATH": str(ROOT)}
    code, out, error = launch(start, "--", sys.executable, "-c", trains, **variables)
    assert (code, '"event": "summary"' in out) == (0, True), error
    variables["TRAINER_MODE"] = "none"
    code, _, error = launch(start, "--", sys.executable, "-c", trains, **variables)
    assert (code, "trainer: rank 0 TRAINER_MODE='none'" in error) == (70, True), error


def nodes_of(start: Any, out: Path, programs: list[str], **added: str) -> list[Any]:
    """Start a node for each program."""
    place = {"PET_NNODES": str(len(programs)), "PET_NPROC_PER_NODE": "1", "TRAINER_OUT": str(out)}
    place |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port())} | added
    command = ("-m", "trainer.launch", "--", sys.executable, "-c")
    return [
        start(*command, f"import os, time; {program}", PET_NODE_RANK=str(number), **place)
        for number, program in enumerate(programs)
    ]


def test_a_node_may_work_long_after_the_others_have_ended(start: Any, tmp_path: Path) -> None:
    # Longer than our trainer's ranks may, and than node 0 waits for these.
    ends = "time.sleep(32 * (os.environ['RANK'] == '2')); print('has ended')"
    for node in nodes_of(start, tmp_path / "run", [ends] * 3):
        assert node.process.wait(90) == 0, node.read(node.stderr)
        assert "has ended" in node.read(node.out)


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_node_does_not_run_on_after_another_was_stopped(
    start: Any, tmp_path: Path, stopped: int
) -> None:
    waits = "print('ready', flush=True); time.sleep(60)"
    nodes = nodes_of(start, tmp_path / "run", [waits] * 2, PET_SHUTDOWN_TIMEOUT="2")
    other = nodes.pop(1 - stopped)
    other.wait_for("ready")
    assert stop(nodes[0], ranks=1) == 143
    assert other.process.wait(20) == 69
    assert " was stopped" in other.read(other.stderr)


AGREES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
stop = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))
for step in range(100):
    asked = stop.clone()
    dist.all_reduce(asked)
    if asked:
        break
    if step == 2:
        print("ready", flush=True)
    time.sleep(0.05)
else:
    print("has trained", flush=True)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("elastic", [False, True])
def test_ranks_that_agree_to_stop_and_end_with_0_are_not_done(
    start: Any, tmp_path: Path, *, elastic: bool
) -> None:
    added = {"PET_NNODES": "1:2", "PET_RDZV_BACKEND": "c10d"} if elastic else {}
    added |= {"PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}"} if elastic else {}
    nodes = nodes_of(start, tmp_path / "run", [f"import signal, sys\n{AGREES}"] * 2, **added)
    for node in nodes:
        node.wait_for("ready")
    first, second = sorted(nodes, key=lambda node: "[rank 1]" in node.read(node.out))
    assert stop(second, ranks=1) == 143
    assert first.process.wait(60) == (0 if elastic else 143), first.read(first.stderr)
    assert ("has trained" in first.read(first.out)) == elastic


@pytest.mark.parametrize(
    ("fails", "lost", "codes"),
    [
        ("time.sleep(2); os._exit(5)", 2, [69, 0, 70]),
        ("time.sleep(2); os.kill(os.getppid(), 9)", 0, [-9, 0, 69]),
        (
            "time.sleep(2); os._exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')",
            0,
            [69, 0, 69],
        ),
    ],
)
def test_a_node_that_is_lost_after_another_has_ended_is_not_waited_for(
    start: Any, tmp_path: Path, fails: str, lost: int, codes: list[int]
) -> None:
    programs = ["time.sleep(60)", "pass", "time.sleep(60)"]
    programs[lost] = fails
    restarts = str(int("RESTART" in fails))  # in place: without node 1 there is no next round
    nodes = nodes_of(start, tmp_path / "run", programs, PET_MAX_RESTARTS=restarts)
    assert [node.process.wait(30) for node in nodes] == codes


@pytest.mark.parametrize("closed", ["1", "2", "0 1 2"])
def test_streams_that_the_caller_has_closed_do_not_matter(
    start: Any, tmp_path: Path, closed: str
) -> None:
    closes = (
        f"import os, sys; [os.close(int(number)) for number in {closed!r}.split()]; "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    writes = f"print('said'); open({str(tmp_path / 'ran')!r}, 'w').close()"
    command = ("-m", "trainer.launch", "--", sys.executable, "-c", writes)
    started = start("-c", closes, *command, PYTHONPATH=str(ROOT))
    assert started.process.wait(30) == 0
    assert (tmp_path / "ran").exists()


def test_a_limit_of_the_machine_is_one_line(start: Any) -> None:
    limits = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = ("-m", "trainer.launch", "--nproc-per-node", "3", "--", sys.executable, "-c", "pass")
    variables = {"PYTHONPATH": str(ROOT), "MUSTER_RETRY_EXIT_OFFSET": "128"}
    started = start("-c", limits, *command, **variables)
    assert started.process.wait(30) == 71 + 128
    error = started.read(started.stderr)
    assert "Too many open files" in error
    assert "Traceback" not in error
