"""What every process of a job is doing: for a test that has waited for it in vain.

    raise AssertionError(account(job))

Processes with `SITE` as their sitecustomize are asked for their stacks as well, which they write to
their standard error; one that is stopped, or has not come that far, is not.
"""

import contextlib
import signal
import time
from pathlib import Path

import psutil

from tests.conftest import Started

SITE = """
import faulthandler, signal
faulthandler.register(signal.SIGUSR1, all_threads=True)
"""

_ANSWER = 1.0  # seconds for a process to write down its stacks


def account(hosts: dict[int, list[int]], nodes: list[Started]) -> str:
    """Return a paragraph for each process of `hosts`, process numbers by the host's number.

    `nodes` are the launchers, whose standard error is what all that is below them writes to.
    """
    parts = []
    for host, pids in hosts.items():
        parts += [f"host {host}: no process"] if not pids else []
        for pid in sorted(pids):
            with contextlib.suppress(psutil.Error, OSError):
                parts.append(f"host {host}: {_process(psutil.Process(pid), nodes)}")
    return "\n".join(parts)


def _process(process: psutil.Process, nodes: list[Started]) -> str:
    with process.oneshot():
        status, age = process.status(), time.time() - process.create_time()
        cpu, command = process.cpu_times(), " ".join(process.cmdline())
        name = process.name()
    with contextlib.suppress(psutil.Error):
        rank = process.environ().get("RANK")
    if name.startswith(("rank ", "fork ")):  # as the launcher's fork server calls them
        role = name
    else:
        role = f"rank {rank}" if rank else "launcher" if "trainer.launch" in command else "other"
    waits = Path(f"/proc/{process.pid}/wchan").read_text(encoding="ascii") or "?"
    return (
        f"{role}, process {process.pid} of {process.ppid()}, {status} in {waits}, "
        f"{cpu.user + cpu.system:.1f} s of CPU time in {age:.1f} s, "
        f"{process.num_threads()} threads: {command}\n{_stacks(process, nodes)}"
    )


def _stacks(process: psutil.Process, nodes: list[Started]) -> str:
    """Return what the process writes when it is asked where it is."""
    if process.status() == psutil.STATUS_STOPPED:
        return "  (stopped, so it cannot be asked)"
    if not _catches(process.pid, signal.SIGUSR1):
        return "  (has not come as far as Python's start, so it cannot be asked)"
    families = {process.pid, *(parent.pid for parent in process.parents())}
    words = [Path(n.words.name) for n in nodes if n.process.pid in families]
    if not words:
        return "  (nobody's child: its standard error is not known)"
    before = words[-1].stat().st_size
    process.send_signal(signal.SIGUSR1)
    time.sleep(_ANSWER)
    with words[-1].open(encoding="utf-8", errors="replace") as file:
        file.seek(before)
        return file.read().rstrip() or f"  (no answer in {_ANSWER} s)"


def _catches(pid: int, number: signal.Signals) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
