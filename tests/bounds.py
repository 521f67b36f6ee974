"""Run a function in a separate process with limits of memory and time.

assert bounded(partial(read, file), seconds=10) == "64: job.yaml: ..."
"""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

from trainer.config.exits import Fault

_MEGABYTES = 300


def bounded(function: Callable[[], object], *, seconds: int = 5) -> str:
    """Return the Fault that `function` raised, as CODE: TEXT, "" if none.

    The process may use 300 MB more than this one and `seconds` of processor time. On a busy machine it
    may last far longer; a process that only waits is ended by an alarm. Beyond a limit the result is
    the name of the signal, or MemoryError.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            out.write(_attempt(function, seconds))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(process, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else text


def _attempt(function: Callable[[], object], seconds: int) -> str:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + (_MEGABYTES << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(30 + 3 * seconds)
    try:
        function()
    except Fault as fault:
        return f"{fault.code}: {fault}"
    except BaseException as error:  # noqa: BLE001  # the caller judges it
        return f"{type(error).__name__}: {error}"
    return ""
