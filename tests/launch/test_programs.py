"""What the launcher adds to any program: where to save, events, hangs, code that travels."""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_code_sync import carried
from tests.launch.test_commands import STAYS, launch
from trainer.report.history import read
from trainer.why import why

pytestmark = pytest.mark.slow

SAVES = """
import os, pathlib
folder = pathlib.Path(os.environ["MUSTER_CHECKPOINTS"])
print("restart", os.environ["MUSTER_RESTART"], [path.name for path in folder.iterdir()], flush=True)
(folder / "one").touch()
print("out", os.environ["TRAINER_OUT"])
"""


def test_a_program_knows_where_to_save_and_whether_something_is_there(
    start: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    for said in ("restart 0 []", "restart 1 ['one']"):
        command = ("--", sys.executable, "-c", SAVES)
        code, written, error = launch(start, *command, TRAINER_OUT=str(out))
        assert code == 0, error
        assert written.splitlines() == [said, f"out {out}"]


FAILS = """
import os, sys, time
if os.environ["RANK"] == "0":
    time.sleep(0.5)
    sys.exit("the connection was closed by a peer")
for number in range(30):
    print("line", number, file=sys.stderr)
sys.exit("the cause")
"""


def test_the_rank_that_failed_first_is_shown_with_its_last_lines_and_the_other_as_its_victim(
    start: Any,
) -> None:
    variables = {"PET_NPROC_PER_NODE": "2", "PET_SHUTDOWN_TIMEOUT": "5"}
    code, _, error = launch(start, "--", sys.executable, "-c", FAILS, **variables)
    assert code == 70
    lines = error.splitlines()
    shown = lines.index("launch: rank 1 failed first; its last lines:")
    assert lines[shown + 1] == "[rank 1] line 21"
    assert lines[shown + 10] == "[rank 1] the cause"
    assert lines[shown + 11] == "launch: rank 1: ended with its own code 1 (exit 70)"


TRAINS = """
import sys
for step in range(1, 4):
    print(f"step={1000 * step:,} loss={1 / step} samples_per_second={1234.5:,}", file=sys.stderr)
print("checkpoint=/out/three")
print("loss=soon step=many")
print("loss=0,125")  # no thousands
"""
PATTERNS = {
    "step": r"step=([\d,]+)",
    "loss": r"loss=(?P<value>\S+)",
    "samples_per_second": r"samples_per_second=(\S+)",
    "checkpoint": r"checkpoint=(\S+)",
}


def test_events_are_read_out_of_the_lines_of_rank_0(start: Any, tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS, encoding="utf-8")
    variables = {"MUSTER_PATTERNS": json.dumps(PATTERNS), "TRAINER_OUT": str(tmp_path / "run")}
    for ranks in ("1", "2"):
        code, out, error = launch(start, "--nproc-per-node", ranks, str(script), **variables)
        assert code == 0, error
        events = [json.loads(line) for line in out.splitlines() if line.startswith('{"event"')]
        kept = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        launch_event, *read, summary = [json.loads(line) for line in kept[-6:]]
        assert read == events
        assert (launch_event["event"], summary["event"]) == ("launch", "summary")
        assert all(0 <= event["goodput"] <= 1 for event in events if event["event"] == "step")
        for event in events:
            for name in ("time", "goodput", "wall_s", "spent_s"):
                event.pop(name, None)
        steps = [
            {"event": "step", "step": 1000 * step, "loss": 1 / step, "samples_per_s": 1234.5}
            for step in range(1, 4)
        ]
        assert sorted(events, key=str) == sorted(
            [*steps, {"event": "checkpoint", "action": "saved", "path": "/out/three"}], key=str
        )
        assert "step=3" in error  # the lines themselves are there too


def test_a_second_sigterm_kills(start: Any) -> None:
    started = start("-m", "trainer.launch", "--", sys.executable, "-c", STAYS)
    started.wait_for("ready")
    started.process.send_signal(signal.SIGTERM)
    started.wait_for("told")
    assert started.process.poll() is None
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(5) == 70
    assert "(SIGKILL); the launcher got a second signal (exit" in started.read(started.stderr)


HANGS = """
import faulthandler, sys, time
faulthandler.enable()
def wait_for_nothing():
    time.sleep(600)
print("hangs now", flush=True)
wait_for_nothing()
"""
WORKS = """
import sys, time
end = time.monotonic() + 4
while time.monotonic() < end:
    {}
"""


def test_ranks_that_hang_are_69_with_their_stacks(start: Any) -> None:
    code, _, error = launch(start, "--", sys.executable, "-c", HANGS, MUSTER_STALL="2")
    assert code == 69, error
    assert "in wait_for_nothing" in error
    assert "the ranks hang: no output and no processor time for 2 s" in error


@pytest.mark.parametrize("work", ["pass", "print(1, flush=True); time.sleep(0.5)"])
def test_who_computes_or_writes_does_not_hang(work: str, start: Any) -> None:
    command = ("--", sys.executable, "-c", WORKS.format(work))
    code, _, error = launch(start, *command, MUSTER_STALL="2")
    assert code == 0, error


def test_code_that_travelled_is_unpacked_where_it_runs(start: Any, tmp_path: Path) -> None:
    files = {"package/__init__.py": "", "package/own.py": "print('from afar')"}
    variables = carried(tmp_path, files)
    for _ in range(2):  # a container that starts again finds it there
        code, out, error = launch(start, "-m", "package.own", **variables)
        assert code == 0, error
        assert out == "from afar\n"
    carried(tmp_path, {"package/own.py": "print('another')"})
    code, out, error = launch(start, "-m", "package.own", **variables)
    assert code == 65
    assert "has the hash" in error
    assert out == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"no archive", "cannot be unpacked"),
        (b"", "cannot be unpacked"),
        (os.mkfifo, "is not a regular file"),  # another user may write to the claim
        (lambda file: file.symlink_to("/dev/zero"), "is not a regular file"),
        (
            lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_RDWR), 1 << 40),
            "bytes, more than 268,435,456",
        ),
    ],
)
def test_an_archive_that_is_none_is_65(
    content: bytes | Callable[[Path], None] | None, reason: str, start: Any, tmp_path: Path
) -> None:
    file, given = tmp_path / "code.tar.gz", content if isinstance(content, bytes) else b""
    if callable(content):
        content(file)
    elif content is not None:
        file.write_bytes(content)
    variables = {
        "MUSTER_CODE": str(file),
        "MUSTER_CODE_SHA256": hashlib.sha256(given).hexdigest(),
        "MUSTER_CODE_FOLDER": str(tmp_path / "code"),
    }
    code, _, error = launch(start, "--", "true", **variables)
    assert code == 65, error
    assert reason in error
    assert "Traceback" not in error


SLOW_TO_END = """
import atexit, os, socket, sys, time
master = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    connection, _ = socket.create_server(master).accept()
    connection.recv(1)
    raise ConnectionResetError("lost rank 1")
while True:
    try:
        connection = socket.create_connection(master)
        break
    except OSError:
        time.sleep(0.01)
def unload():
    connection.close()
    time.sleep(60)
atexit.register(unload)
raise ValueError("the cause")
"""


def test_a_rank_that_raised_first_is_the_cause_though_it_takes_longer_to_end(
    start: Any,
) -> None:
    command = ("--", sys.executable, "-c", SLOW_TO_END)
    code, _, error = launch(start, *command, PET_NPROC_PER_NODE="2")
    assert code == 70
    assert "launch: rank 1: raised, and was ended before it had exited (exit 70)" in error
    assert "launch: rank 0: ended with its own code 1, after rank 1 had failed (exit 70)" in error


UNSEEN = """
import os, socket, sys, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("127.0.0.1", 0))
    open("port.new", "w").write(str(server.getsockname()[1]))
    os.rename("port.new", "port")
    server.accept()[0].recv(1)
    sys.exit("Connection reset by peer")
while not os.path.exists("port"):
    time.sleep(0.01)
socket.create_connection(("127.0.0.1", int(open("port").read()))).close()
time.sleep(0.15)  # as to unload what it has imported
sys.exit("the cause")
"""


def test_a_rank_that_ends_after_its_victim_has_failed_too(start: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    variables = {"PET_NPROC_PER_NODE": "2", "TRAINER_OUT": str(run)}
    code, _, error = launch(start, "--", sys.executable, "-c", UNSEEN, **variables)
    assert code == 70
    assert "launch: rank 1: ended with its own code 1, after rank 0 had failed (exit 70)" in error
    assert "evidence  the cause [" in "\n".join(why(read(run)))
