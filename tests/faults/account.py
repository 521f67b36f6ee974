"""What every process of a job is doing, for the message of a test that has waited too long.

    raise AssertionError(account(job))

Processes with `SITE` as their sitecustomize also write their stacks to their standard error.
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

_ANSWER = 1.0  # seconds for a process to write its stacks


def account(hosts: dict[int, list[int]], nodes: list[Started]) -> str:
    """Return a paragraph for each process of `hosts`: process numbers by the host's number.

    `nodes` are the launchers; all processes below one write to its standard error.
    """
    parts = []
    for host, pids in hosts.items():
        parts += [f"host {host}: no process"] if not pids else []
        for pid in sorted(pids):
            with contextlib.suppress(psutil.Error, OSError):
                parts.append(f"host {host}: {_process(psutil.Process(pid), nodes)}")
    return "\n".join(parts)


def _process(process: psutil.Process, nodes: list[Started]) -> str:
    name, command, cpu = process.name(), " ".join(process.cmdline()), process.cpu_times()
    rank = process.environ().get("RANK")
    if not name.startswith(("rank ", "fork ")):  # as the launcher's fork server calls them
        name = f"rank {rank}" if rank else "launcher" if "trainer.launch" in command else "other"
    waits = Path(f"/proc/{process.pid}/wchan").read_text(encoding="ascii") or "?"
    return (
        f"{name}, process {process.pid} of {process.ppid()}, {process.status()} in {waits}, "
        f"{cpu.user + cpu.system:.1f} s of CPU time in {time.time() - process.create_time():.1f} s, "
        f"{process.num_threads()} threads: {command}\n{_stacks(process, nodes)}"
    )


def _stacks(process: psutil.Process, nodes: list[Started]) -> str:
    """Return the stacks that the process writes when it gets SIGUSR1."""
    if process.status() == psutil.STATUS_STOPPED:
        return "  (stopped, so it cannot be asked)"
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    if not caught >> (signal.SIGUSR1 - 1) & 1:
        return "  (has no handler, so it cannot be asked)"
    family = {process.pid, *(parent.pid for parent in process.parents())}
    files = [Path(node.stderr.name) for node in nodes if node.process.pid in family]
    if not files:
        return "  (below none of the launchers: its standard error is not known)"
    before = files[-1].stat().st_size
    process.send_signal(signal.SIGUSR1)
    time.sleep(_ANSWER)
    with files[-1].open(encoding="utf-8", errors="replace") as file:
        file.seek(before)
        return file.read().rstrip() or f"  (no answer in {_ANSWER} s)"
