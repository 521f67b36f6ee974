"""What each process of a job is doing, for the message of a test that has waited too long.

Processes with `SITE` as their sitecustomize write their stacks to their standard error.
"""

import contextlib
import signal
import time
from pathlib import Path

import psutil

SITE = """
import faulthandler, signal
faulthandler.register(signal.SIGUSR1, all_threads=True)
"""

_ANSWER = 1.0  # seconds for the processes to write their stacks


def account(hosts: dict[int, list[int]]) -> str:
    """Ask every process for its stacks and return a line for each; `hosts` are pids by host number."""
    lines = []
    for host, pids in hosts.items():
        lines += [f"host {host}: no process"] if not pids else []
        for pid in sorted(pids):
            with contextlib.suppress(psutil.Error, OSError):
                lines.append(f"host {host}: {_ask(psutil.Process(pid))}")
    time.sleep(_ANSWER)
    return "\n".join(lines)


def _ask(process: psutil.Process) -> str:
    name, command, cpu = process.name(), " ".join(process.cmdline()), process.cpu_times()
    rank, proc = process.environ().get("RANK"), Path(f"/proc/{process.pid}")
    if not name.startswith(("rank ", "fork ")):  # the names that the launcher's fork server gives
        name = f"rank {rank}" if rank else "launcher" if "trainer.launch" in command else "other"
    caught = proc.joinpath("status").read_text("ascii").partition("SigCgt:")[2].split()[0]
    state, asked = process.status(), int(caught, 16) >> (signal.SIGUSR1 - 1) & 1
    if asked and state != psutil.STATUS_STOPPED:
        process.send_signal(signal.SIGUSR1)
    else:
        state += " (cannot be asked for its stacks)"
    return (
        f"{name}, process {process.pid} of {process.ppid()}, {state}, "
        f"in {proc.joinpath('wchan').read_text('ascii') or '?'}, "
        f"{cpu.user + cpu.system:.1f} s of CPU time in {time.time() - process.create_time():.1f} s, "
        f"{process.num_threads()} threads: {command}"
    )
