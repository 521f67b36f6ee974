"""The process that forks the ranks: what each of them begins with, and what becomes of who is lost."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import QUICK, ROOT
from trainer.launcher.fork_server import ForkServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each rank is started anew"),
]

BIRTH = """
import json, os, signal, sys
import numpy
from trainer.launcher.fork_server import begin

server = begin(["numpy"])
if server is None:
    handlers = [signal.getsignal(n) is signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP)]
    said = {
        "environment": dict(os.environ),
        "leads": os.getsid(0) == os.getpid(),
        "handlers": handlers,
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "open": len(os.listdir("/dev/fd")),
        "drawn": numpy.random.random(),
    }
    print(json.dumps(said))
    print("error", file=sys.stderr)
    sys.exit(int(os.environ["CODE"]))
ranks = []
for number, code in enumerate((0, 69)):
    own = {"RANK": str(number), "CODE": str(code), "LARGE": "x" * 500_000, "BYTES": "\\udcff"}
    with open(f"out-{number}", "w") as out, open(f"err-{number}", "w") as err:
        ranks.append(server.fork(own, stdout=out.fileno(), stderr=err.fileno()))
print(json.dumps([rank.wait(30) for rank in ranks]))
"""


def test_a_rank_begins_with_its_own_variables_files_signals_and_draws(
    start: Any,
) -> None:
    started = start("-c", BIRTH, PYTHONPATH=str(ROOT))
    folder = Path(started.out.name).parent
    assert started.process.wait(60) == 0, started.read(started.words)
    assert json.loads(started.read(started.out)) == [0, 69]
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


AT_ONCE = """
import json, os, signal, time
from trainer.launcher.fork_server import begin

server = begin(["signal"])
if server is None:
    time.sleep(60)
codes = []
for _ in range(50):
    rank = server.fork({}, stdout=1, stderr=2)
    os.kill(rank.pid, signal.SIGTERM)
    codes.append(rank.wait(10))
print(json.dumps(codes))
"""


def test_a_signal_that_comes_with_the_birth_is_not_lost(start: Any) -> None:
    started = start("-c", AT_ONCE, PYTHONPATH=str(ROOT))
    assert started.process.wait(60) == 0, started.read(started.words)
    assert json.loads(started.read(started.out)) == [-15] * 50


LOST = """
import os, signal, time
from trainer.config.exits import Fault
from trainer.launcher.fork_server import begin

server = begin(["signal"])
if server is None:
    print(os.getppid(), flush=True)
    time.sleep(60)
with open("parent", "w") as file:
    rank = server.fork({}, stdout=file.fileno(), stderr=2)
while not (pid := open("parent").read()):
    time.sleep(0.01)
os.kill(int(pid), signal.SIGKILL)
print(rank.wait(10))
try:
    server.fork({}, stdout=1, stderr=2)
except Fault as fault:
    print(fault.code.value, fault)
"""


def test_a_server_that_is_lost_takes_its_ranks_along_and_is_told_of(start: Any) -> None:
    started = start("-c", LOST, PYTHONPATH=str(ROOT))
    assert started.process.wait(60) == 0, started.read(started.words)
    lost = "71 the process that forks the ranks does not answer"
    assert started.read(started.out).splitlines() == ["-9", lost]


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
        : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion : 0;
    return *found ? 0 : 500;
}
int cuGetProcAddress(const char *name, void **found, int v, unsigned long long f) {
    return cuGetProcAddress_v2(name, found, v, f, 0);
}
"""


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """The variables under which torch finds our driver, which writes who uses it to `used`."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER, encoding="utf-8")
    build = ("cc", "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.c")
    subprocess.run(build, cwd=tmp_path, check=True)
    found = f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return {"LD_LIBRARY_PATH": found, "DRIVER_USED": str(tmp_path / "used")}


def test_nothing_asks_the_driver_of_gpus_before_the_ranks_are_forked(
    start: Any, driver: dict[str, str]
) -> None:
    """Nor does what counts the devices, where nothing says how many ranks to start."""
    started = start("-m", "trainer.launch", **(QUICK | driver | {"TRAINER_STEPS": "100000"}))
    started.wait_for('"step": 5,')
    launcher, server, rank = started.family()
    assert (server.name(), rank.name()) == ("fork server", "rank 0")
    used = Path(driver["DRIVER_USED"]).read_text(encoding="utf-8")
    asked = {int(pid) for pid in used.split()}
    assert rank.pid in asked
    assert len(asked) == 2  # and the copy that counted
    assert not asked & {launcher.pid, server.pid}


def test_a_driver_that_crashes_when_it_is_asked_is_71(start: Any, driver: dict[str, str]) -> None:
    ended = start("-m", "trainer.launch", **(QUICK | driver), DRIVER_BROKEN="1").end()
    assert ended.code == 71
    assert "cannot be counted" in ended.words
    assert "PET_NPROC_PER_NODE" in ended.words


def test_a_number_that_a_former_process_had_does_not_end_a_new_one() -> None:
    ours, theirs = socket.socketpair()
    server = ForkServer(ours, 0)
    theirs.sendall(b"born 5 0\nended 5 69\n")
    assert server.ended(5) == 69
    theirs.sendall(b"born 5 0\n")
    assert server.ended(5) is None
