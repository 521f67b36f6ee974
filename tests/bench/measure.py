"""Measure contenders in turn: long-lived ones that take steps when asked, or commands from start to end.

times = in_turn({"muster": Contender(...), "bare": Contender(...)}, rounds=15)
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import NoReturn

import psutil

from tests.conftest import ROOT, clean_environment

PEERS = ROOT / "build" / "bench-peers" / "bin" / "python"
SCRIPTS = ROOT / "tests" / "bench" / "peers"
_WAIT = 300  # seconds for a contender's answer

Times = dict[str, list["Took"]]


@dataclass(frozen=True)
class Took:
    """Seconds of processor time, of all ranks, and of wall time.

    `memory`: bytes that all processes of the contender then hold; shared pages count once. 0 for a
    command that has ended. `peak`: the most that it held since its start; 0 for several processes,
    whose peaks would count shared pages several times.
    """

    cpu: float
    wall: float
    memory: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Contender:
    """A process to compare: its arguments after `python`, its variables, its ranks.

    `reads_ahead`: it has loader processes, which work between its steps; their processor time counts.
    `within`: where its folder is made.
    """

    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1
    python: Path = Path(sys.executable)
    reads_ahead: bool = False
    within: str | None = None


def end_contenders_on_sigterm() -> None:
    """Let SIGTERM also end all processes that this one has started."""

    def end(number: int, _: object) -> NoReturn:
        started = psutil.Process().children(recursive=True)
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, timeout=10)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)


def in_turn(
    contenders: Mapping[str, Contender], *, rounds: int, starts: int = 1, warm_up: int = 1
) -> Times:
    """Start every contender, and let each take its steps in every round.

    `starts`: how many times all are started within the rounds. `warm_up`: rounds after each start that
    do not count.
    """
    times: Times = {name: [] for name in contenders}
    for start in range(min(starts, rounds)):
        with contextlib.ExitStack() as ending:
            begun = {name: ending.enter_context(_started(one)) for name, one in contenders.items()}
            ask = {name: reached() for name, reached in begun.items()}
            share = len(range(start, rounds, starts))
            for name, took in each_in_turn(ask, rounds=share, warm_up=warm_up).items():
                times[name] += took
    return times


def each_in_turn(
    contenders: Mapping[str, Callable[[], Took]], *, rounds: int, warm_up: int = 1
) -> Times:
    """Call every contender in every round, after `warm_up` rounds that do not count."""
    times: Times = {name: [] for name in contenders}
    for number in range(warm_up + rounds):
        for name in _rotated(list(contenders), number):
            took = contenders[name]()
            if number >= warm_up:
                times[name].append(took)
    return times


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Return the median of the rounds' ratios and their spread: half of them lie within, as a share."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    if len(ratios) < 2:
        return ratios[0], 0.0
    lower, middle, upper = quantiles(ratios, n=4, method="inclusive")
    return middle, (upper - lower) / middle


def typical(times: list[Took]) -> Took:
    """Return the median of processor time and of wall time."""
    return Took(
        median(took.cpu for took in times),
        median(took.wall for took in times),
        int(median(took.memory for took in times)),
        int(median(took.peak for took in times)),
    )


def until_line(one: Contender, line: str, *, after: str = "") -> Took:
    """Run a command until `line` is in its output; the processor time is that of all its processes.

    `after`: start the time when this text is in the output; `line` must come later.
    """
    with _process(one) as (process, output):
        used, began = 0.0, time.perf_counter()
        if after:
            _wait_for(after, process, output)
            used, began = _cpu_of_family(process.pid), time.perf_counter()
        _wait_for(line, process, output, after=after)
        wall = time.perf_counter() - began
        return Took(_cpu_of_family(process.pid) - used, wall)


def to_end(one: Contender) -> Took:
    """Run a command to its end; it must succeed."""
    with _process(one) as (process, output):
        began = time.perf_counter()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(output.read_text(encoding="utf-8")[-2000:])
        return Took(usage.ru_utime + usage.ru_stime, wall)


def _rotated(names: list[str], number: int) -> list[str]:
    """Return the names, starting with a different one in each round."""
    first = number % len(names)
    return names[first:] + names[:first]


@contextlib.contextmanager
def _process(one: Contender, **variables: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """Run the contender in its own folder within the block; yield it and its output's file."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=one.within))
    output = folder / "output"
    env = {"TRAINER_LOG": "json", "BENCH_FOLDER": str(folder), "HF_HUB_OFFLINE": "1"}
    # A caller may forbid it; then each start would compile all modules again.
    env["PYTHONDONTWRITEBYTECODE"] = ""
    path = f"{ROOT}:{SCRIPTS}"
    with output.open("w") as file:
        process = subprocess.Popen(
            [str(one.python), *one.arguments],
            cwd=folder,
            env=clean_environment(**env, **variables, **one.env) | {"PYTHONPATH": path},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process, output
    finally:
        for member in _family(process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _started(one: Contender) -> Iterator[Callable[[], Callable[[], Took]]]:
    """Start a contender that takes turns (peers/turn.py).

    Yields a function that waits until it is ready and returns a function to take a turn.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        path = f"{folder}/socket"
        server = ending.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(path)
        server.listen(one.ranks)
        server.settimeout(0.1)
        process, output = ending.enter_context(_process(one, BENCH_SOCKET=path))
        began = time.perf_counter()
        ranks: list[socket.socket] = []

        def reached() -> Callable[[], Took]:
            while len(ranks) < one.ranks:
                _check(process, output, began)
                with contextlib.suppress(TimeoutError):
                    ranks.append(ending.enter_context(server.accept()[0]))
            for rank in ranks:
                rank.settimeout(_WAIT)
            return ask

        def ask() -> Took:
            before = _cpu_when_idle(process.pid) if one.reads_ahead else 0.0
            for rank in ranks:
                rank.sendall(b"\n")
            answers = [rank.recv(1000) for rank in ranks]
            if not all(answers):
                raise RuntimeError(output.read_text(encoding="utf-8")[-2000:])
            took = [Took(**json.loads(answer)) for answer in answers]
            cpu, wall = sum(rank.cpu for rank in took), max(rank.wall for rank in took)
            if one.reads_ahead:
                cpu = _cpu_when_idle(process.pid) - before
            alone = len(_family(process.pid)) == 1
            peak = _peak_of(process.pid) if alone else 0
            return Took(cpu, wall, _memory_of_family(process.pid), peak)

        yield reached


def _wait_for(
    line: str, process: "subprocess.Popen[bytes]", output: Path, *, after: str = ""
) -> None:
    began = time.perf_counter()
    while True:
        text = output.read_text(encoding="utf-8", errors="replace")
        if line in text[max(0, text.find(after)) :]:
            return
        _check(process, output, began)
        time.sleep(0.01)


def _check(process: "subprocess.Popen[bytes]", output: Path, began: float) -> None:
    if process.poll() is not None or time.perf_counter() - began > _WAIT:
        raise RuntimeError(f"it ended early: {output.read_text(encoding='utf-8')[-2000:]}")


def _family(leader: int) -> list[psutil.Process]:
    """Return a process, its descendants, and those of its session: ranks may have other sessions."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(leader)
        found = {process.pid: process for process in (top, *top.children(recursive=True))}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == leader:
                found[process.pid] = process
    return list(found.values())


def _cpu_of_family(leader: int) -> float:
    """Return the processor time of a family, with that of ended processes."""
    total = 0.0
    for process in _family(leader):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _cpu_when_idle(leader: int) -> float:
    """Return the processor time of a family once it has read as far ahead as it may."""
    before, used = -1.0, _cpu_of_family(leader)
    while used - before > 0.02:
        time.sleep(0.2)
        before, used = used, _cpu_of_family(leader)
    return used


def _memory_of_family(leader: int) -> int:
    """Return the bytes that a family holds (Linux: PSS)."""
    total = 0
    for process in _family(leader):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total


def _peak_of(process: int) -> int:
    """Return the most bytes that a process has held (Linux: VmHWM), shared pages included."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return 1024 * int(kib)
