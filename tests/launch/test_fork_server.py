"""The process that forks the ranks: what each of them starts with, and what happens when one is lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="on other systems each rank is a new process"
    ),
]

# What the server runs instead of trainer/rank_server.py.
SERVER = """
import json, os, signal, socket, sys, time
import numpy
from trainer.config.exits import STOP_SIGNALS
from trainer.launcher.forking import serve
from trainer.launcher.orphans import die_with_parent

signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
die_with_parent(int(sys.argv[2]))
connection = socket.socket(fileno=int(sys.argv[1]))
serve(connection)
connection.close()
if "CODE" not in os.environ:
    print(os.getppid(), flush=True)
    time.sleep(60)
# libffi 3.5 keeps its own library open.
files = [file for n in os.listdir("/dev/fd") if ".so" not in (file := os.path.realpath(f"/dev/fd/{n}"))]
handlers = [signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP)]
state = {
    "environment": dict(os.environ),
    "leads": os.getsid(0) == os.getpid(),
    "handlers": handlers,
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "open": len(files),
    "drawn": numpy.random.random(),
}
print(json.dumps(state))
print("error", file=sys.stderr)
sys.exit(int(os.environ["CODE"]))
"""

BEGIN = """
import json, os, signal, time
from contextlib import closing
from trainer.config.exits import Fault
from trainer.launcher.fork_server import ForkServer

def wait(process):
    end = time.monotonic() + 30
    while (code := process.poll()) is None and time.monotonic() < end:
        time.sleep(0.01)
    return code

server = ForkServer("own_server")
"""


@pytest.fixture
def launcher(start: Any, tmp_path: Path) -> Any:
    """Run a script with our fork server; return its output and its folder."""
    (tmp_path / "own_server.py").write_text(SERVER, encoding="utf-8")

    def run(script: str) -> tuple[list[str], Path]:
        started = start("-c", BEGIN + script, PYTHONPATH=f"{tmp_path}:{ROOT}")
        assert started.process.wait(60) == 0, started.read(started.stderr)
        return started.read(started.out).splitlines(), Path(started.out.name).parent

    return run


RANKS = """
ranks = []
for number, code in enumerate((0, 69)):
    own = {"RANK": str(number), "CODE": str(code), "LARGE": "x" * 500_000, "BYTES": "\\udcff"}
    with open(f"out-{number}", "w") as out, open(f"err-{number}", "w") as err:
        ranks.append(server.fork(own, stdout=out.fileno(), stderr=err.fileno()))
print(json.dumps([wait(rank) for rank in ranks]))
server.close()
"""


def test_a_rank_starts_with_its_own_variables_files_signals_and_random_numbers(
    launcher: Any,
) -> None:
    lines, folder = launcher(RANKS)
    assert json.loads(lines[0]) == [0, 69]
    ranks = [json.loads((folder / f"out-{n}").read_text(encoding="utf-8")) for n in range(2)]
    for number, rank in enumerate(ranks):
        assert rank["environment"] == {
            "RANK": str(number),
            "CODE": str(69 * number),
            "LARGE": "x" * 500_000,
            "BYTES": "\udcff",
        }
        assert rank["leads"]
        assert rank["handlers"] == [True, True]
        assert rank["blocked"] == 0
        assert rank["open"] == 4  # standard ones, and the folder that is listed
        assert (folder / f"err-{number}").read_text(encoding="utf-8") == "error\n"
    assert ranks[0]["drawn"] != ranks[1]["drawn"]


SIGNALLED = """
codes = []
for _ in range(50):
    rank = server.fork({}, stdout=1, stderr=2)
    os.kill(rank.pid, signal.SIGTERM)
    codes.append(wait(rank))
print(json.dumps(codes))
server.close()
"""


def test_a_signal_right_after_the_fork_is_not_lost(launcher: Any) -> None:
    lines, _ = launcher(SIGNALLED)
    assert json.loads(lines[-1]) == [-15] * 50


LOST = """
with open("parent", "w") as file:
    rank = server.fork({}, stdout=file.fileno(), stderr=2)
while not (pid := open("parent").read()):
    time.sleep(0.01)
os.kill(int(pid), signal.SIGKILL)
print(wait(rank))
try:
    server.fork({}, stdout=1, stderr=2)
except Fault as fault:
    print(fault.code.value, fault)
"""


def test_ranks_end_with_a_server_that_is_killed(launcher: Any) -> None:
    lines, _ = launcher(LOST)
    assert lines == ["-9", "70 the process that forks the ranks was killed"]


CLOSED = """
with open("parent", "w") as file:
    ranks = [server.fork({}, stdout=file.fileno(), stderr=2) for _ in range(20)]
server.close()
left = []
for rank in ranks:
    try:
        os.kill(rank.pid, 0)
        left.append(rank.pid)
    except ProcessLookupError:
        pass
print(left)
"""


def test_nothing_is_left_once_the_server_is_closed(launcher: Any) -> None:
    lines, _ = launcher(CLOSED)
    assert lines == ["[]"]


# The first call of the driver, after which it is of no use to a fork. It knows no device.
DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int cuInit(unsigned flags) {
    FILE *file = fopen(getenv("DRIVER_USED"), "a");
    fprintf(file, "%d\\n", getpid());
    fclose(file);
    if (getenv("DRIVER_BROKEN")) abort();
    return 100;
}
int cuDriverGetVersion(int *version) { *version = 99000; return 0; }
int cuGetProcAddress_v2(const char *name, void **found, int v, unsigned long long f, void *s) {
    *found = !strcmp(name, "cuInit") ? (void *)cuInit
        : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
        : !strcmp(name, "cuGetProcAddress") ? (void *)cuGetProcAddress_v2 : 0;
    return *found ? 0 : 500;
}
int cuGetProcAddress(const char *name, void **found, int v, unsigned long long f) {
    return cuGetProcAddress_v2(name, found, v, f, 0);
}
"""


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """Variables with which torch finds our driver, which writes the ids of its users to `used`."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER, encoding="utf-8")
    build = ("cc", "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.c")
    subprocess.run(build, cwd=tmp_path, check=True)
    found = f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return {"LD_LIBRARY_PATH": found, "DRIVER_USED": str(tmp_path / "used")}


def test_no_process_uses_the_gpu_driver_before_the_ranks_are_forked(
    start: Any, driver: dict[str, str]
) -> None:
    """It is also not used to count the devices if PET_NPROC_PER_NODE is not set."""
    started = start("-m", "trainer.launch", **(QUICK | driver | {"TRAINER_STEPS": "100000"}))
    started.wait_for('"step": 5,')
    launcher, server, rank = started.family()
    assert (server.name(), rank.name()) == ("fork server", "rank 0")
    used = Path(driver["DRIVER_USED"]).read_text(encoding="utf-8")
    asked = {int(pid) for pid in used.split()}
    assert rank.pid in asked
    assert len(asked) == 2  # and the copy that counted
    assert not asked & {launcher.pid, server.pid}


@pytest.mark.parametrize("command", [(), ("--", "true")], ids=["trainer", "command"])
def test_a_driver_that_crashes_while_devices_are_counted_is_71(
    command: tuple[str, ...], start: Any, driver: dict[str, str]
) -> None:
    ended = start("-m", "trainer.launch", *command, **(QUICK | driver), DRIVER_BROKEN="1").end()
    assert ended.code == 71
    problem = "the accelerators of this node cannot be counted: the driver ended the process that"
    assert f"launch: {problem} called it; set PET_NPROC_PER_NODE to" in ended.stderr


REUSED = """
import socket
ours, theirs = socket.socketpair()
server.close()
server._socket, server._gone = ours, False
theirs.send(b'{"pid": 5}\\n{"ended": 5, "code": 69}\\n')
print(server.exit_code(5))
theirs.send(b'{"pid": 5}\\n')
print(server.exit_code(5))
"""


def test_the_exit_code_of_an_earlier_process_is_not_taken_for_a_new_one_of_its_number(
    launcher: Any,
) -> None:
    lines, _ = launcher(REUSED)
    assert lines == ["69", "None"]
