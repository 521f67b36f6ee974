"""What the tests share: real runs of the trainer, each in one or more processes."""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from trainer.imports import without_collection
from trainer.launcher.hardware import count_cores

# The machine runs other tests at the same time, so an example has no deadline.
hypothesis.settings.register_profile("muster", deadline=None)
hypothesis.settings.load_profile("muster")

# What people set to see colours, or to fit lines into a window: tests compare plain text.
for name in ("COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)

ROOT = Path(__file__).parent.parent

# A small, quick job; tests add to it.
QUICK = {"TRAINER_TASK": "synthetic", "TRAINER_STEPS": "12", "TRAINER_LOG_STEPS": "1"}


def clean_environment(**added: str) -> dict[str, str]:
    """Return this process's environment with `added`, without variables that would change a run."""
    prefixes = ("TRAINER_", "PET_", "MUSTER_", "TORCHELASTIC_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes) and k not in names}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | added


def run_command(
    command: Sequence[str | Path],
    *,
    folder: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `clean_environment(**env)`; return its exit code and its output."""
    return subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=check,
    )


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, with a name for commits, and return what it prints."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@contextmanager
def in_thread(act: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run a function in a thread; at the end of the block set the event that it was given."""
    end = threading.Event()
    thread = threading.Thread(target=act, args=(end,))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def wait_for(
    what: Callable[[], Any], *, seconds: float = 30, seen: Callable[[], object] = str
) -> Any:
    """Return what `what` returns once it is true; after `seconds`, fail with what is `seen`."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, seen()
        time.sleep(0.01)
    return found


def losses(events: list[dict[str, Any]]) -> dict[int, float]:
    """Return the loss of every step; of a repeated step, the last loss."""
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


@dataclass
class Ended:
    """A process that has ended: its code, its events, and its standard error."""

    code: int
    events: list[dict[str, Any]]
    stderr: str

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def losses(self) -> dict[int, float]:
        return losses(self.events)


class Started:
    """A running `python ARGUMENTS`, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        env: Mapping[str, str],
        prefix: tuple[str, ...] = (),
        python: str = sys.executable,
    ) -> None:
        self.out = (folder / "stdout").open("w+")
        self.stderr = (folder / "stderr").open("w+")
        self.process = subprocess.Popen(
            [*prefix, python, *arguments],
            cwd=folder,
            env=clean_environment(**env),
            stdout=self.out,
            stderr=self.stderr,
            start_new_session=True,
        )

    def read(self, file: Any) -> str:
        file.flush()
        return Path(file.name).read_text(encoding="utf-8")

    def wait_for(self, text: str, *, timeout: float = 180) -> None:
        """Wait until `text` is in either output."""
        end = time.monotonic() + timeout
        while text not in self.read(self.out) + self.read(self.stderr):
            assert self.process.poll() is None, self.read(self.stderr)
            assert time.monotonic() < end, f"no {text!r} in {timeout} s: {self.read(self.stderr)}"
            time.sleep(0.02)

    def family(self) -> list[psutil.Process]:
        """Return this process and all its descendants."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def ranks(self) -> list[psutil.Process]:
        """Return the ranks of this launcher, in the order of their numbers."""
        return ranks_below(self.process.pid)

    def end(self, *, timeout: float = 120) -> Ended:
        """Wait until the process ends, and return the result."""
        code = self.process.wait(timeout)
        lines = self.read(self.out).splitlines()
        return Ended(code, [json.loads(line) for line in lines], self.read(self.stderr))

    def clear(self) -> None:
        """Kill the remaining processes, so that one failed test does not disturb the next."""
        if self.process.poll() is None:
            for process in self.family():
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.out.close()
        self.stderr.close()


def ranks_below(launcher: int) -> list[psutil.Process]:
    """Return the ranks of a launcher: its descendants that are named `rank N`."""
    found = {}
    for process in psutil.Process(launcher).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            kind, _, number = process.name().partition(" ")
            if kind == "rank":
                found[int(number)] = process
    return [found[number] for number in sorted(found)]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many tests run at a time: one per core, but at least two, each with 4 GB of memory.

    For the fast tests it is one more, because some of them only wait.
    """
    fit = int(psutil.virtual_memory().total // 4e9)
    return max(2, min(count_cores(), fit)) + int(config.option.markexpr == "not slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the tests without garbage collection, which would take half of the time."""
    with without_collection():
        result = yield
    atexit.register(gc.unfreeze)  # some libraries report at exit what was not freed
    return result


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """Let SIGINT end the processes of tests, also if a shell runs the tests in the background.

    In the background a shell ignores SIGINT, and its descendants inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start `python ARGUMENTS` with variables set, each time in a new folder below tmp_path."""
    running: list[Started] = []

    def begin(*arguments: str, python: str = sys.executable, **env: str) -> Started:
        folder = tmp_path / f"process-{len(running)}"
        folder.mkdir()
        running.append(Started(folder, *arguments, env=env, python=python))
        return running[-1]

    yield begin
    for process in running:
        process.clear()
