"""Process 1 of a container: it hands signals to the launcher, reaps, and ends as that does."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.conftest import ROOT, clean_environment

IN_ITS_OWN = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@functools.cache
def why_not() -> str | None:
    """Return why there can be no process 1 of one's own here, or None."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "a process 1 of its own needs root and unshare"
    tried = subprocess.run([*IN_ITS_OWN, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else None  # root of a container may not


pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

FIRST = "import os, signal, sys, time; from trainer.launcher.init import stand_in; stand_in();"


def process_one(code: str) -> subprocess.Popen[str]:
    """Start Python as process 1, to run `code` after it has stood in."""
    return subprocess.Popen(
        [*IN_ITS_OWN, sys.executable, "-c", FIRST + code],
        env=clean_environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, words = started.communicate(timeout=60)
    return started.returncode, out, words


@pytest.mark.parametrize(
    ("code", "ends_with"),
    [
        ("sys.exit(os.getpid() == 1)", 0),
        ("sys.exit(143)", 143),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139),
    ],
)
def test_it_ends_as_the_launcher_does(code: str, ends_with: int) -> None:
    assert end(process_one(code))[0] == ends_with


def test_signals_are_handed_on_once() -> None:
    started = process_one(
        "got = [];"
        "[signal.signal(n, lambda n, _: got.append(n)) for n in (signal.SIGTERM, signal.SIGINT)];"
        "print('ready', flush=True); time.sleep(1); time.sleep(1); sys.exit(sum(got))"
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    (first,) = psutil.Process(started.pid).children()
    first.send_signal(signal.SIGTERM)
    first.send_signal(signal.SIGINT)
    assert end(started)[0] == signal.SIGTERM + signal.SIGINT


def test_a_signal_that_comes_before_any_handler_is_not_lost() -> None:
    started = process_one("print('ready', flush=True); time.sleep(30)")
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    began = time.monotonic()
    (first,) = psutil.Process(started.pid).children()
    first.send_signal(signal.SIGTERM)
    assert end(started)[0] == 128 + signal.SIGTERM
    assert time.monotonic() - began < 20


def test_orphans_are_reaped() -> None:
    """A rank that is killed leaves its loader workers; who adopts them must wait for them."""
    code = (
        "middle = os.fork()\n"
        "if middle == 0:\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(0.2); os._exit(0)\n"
        "    os._exit(0)\n"
        "os.waitpid(middle, 0); time.sleep(1)\n"
        "alive = [name for name in os.listdir('/proc') if name.isdecimal()]\n"
        "print(sorted(map(int, alive)) == [1, os.getpid()], alive)"
    )
    assert end(process_one("\n" + code))[1].startswith("True")
