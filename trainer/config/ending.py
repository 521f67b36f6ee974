"""End a rank: report its fault once, and exit with its code without waiting for other ranks.

exit_process(report_fault(fault, error))
"""

import atexit
import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from trainer.config.exits import Exit, Fault
from trainer.config.printable import printable


def report_fault(fault: Fault, error: BaseException | None) -> int:
    """Report the fault once, to the launcher or on stderr, and return its code.

    Only errors of the training code (70) are reported with their traceback.
    """
    torch = sys.modules.get("torch")
    if error is not None and torch is not None and torch.accelerator.is_available():
        # Keep all objects of the failed code until the process ends. After a failed kernel the GPU
        # cannot free a tensor, and torch would abort the process with -6. Without a GPU keep nothing:
        # the failed code may hold connections, and other ranks see the failure when these close.
        sys.last_value = error
    trace = ""
    if error is not None and fault.code == Exit.CODE:
        trace = "".join(traceback.format_exception(error))
    if (file := os.environ.get("TORCHELASTIC_ERROR_FILE")) and fault.code != Exit.STOPPED:
        details = {"py_callstack": trace, "timestamp": str(int(time.time()))}
        report = {"message": str(fault), "errorCode": int(fault.code), "extraInfo": details}
        with contextlib.suppress(OSError):  # a full disk must not change the exit code
            new = Path(f"{file}.new")  # a rank that is killed now leaves no half-written file
            new.write_text(json.dumps({"message": report}), encoding="utf-8")
            new.replace(file)
    if "MUSTER_LAUNCHER" not in os.environ:  # trainer.launch reports it, once for all its ranks
        rank = f" rank {os.environ['RANK']}" if "RANK" in os.environ else ""
        text = printable(str(fault))
        print(f"{trace}trainer:{rank} {text} (exit {fault.code})", file=sys.stderr, flush=True)
    return fault.code


def exit_process(code: int) -> NoReturn:
    """End the process; at once if it still has a process group (see `runtime.join`).

    Otherwise wait for threads and exit functions, as Python does, but skip the rest of its shutdown:
    with torch loaded, clearing the modules takes a second of a core and has no effect.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        exit_at_once(code)
    if "torch" not in sys.modules:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # as multiprocessing does
    atexit._run_exitfuncs()  # noqa: SLF001
    _end(code)


def exit_at_once(code: int) -> NoReturn:
    """End the process without Python's shutdown, which waits for threads and process groups."""
    # Loader workers: the atexit function that would end them is not run here.
    for child in multiprocessing.active_children():
        child.kill()
    _end(code)


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader is gone
            stream.flush()
    os._exit(code)
