"""How a rank ends: a fault is told once, to the agent or to who is reading, and nothing holds it up.

leave(tell(fault, error))
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


def tell(fault: Fault, error: BaseException | None) -> int:
    """Tell the fault once, to the agent or to who is reading, and return its code.

    Only the training code's own errors are told with their traceback.
    """
    trace = ""
    if error is not None and fault.code == Exit.CODE:
        trace = "".join(traceback.format_exception(error))
    if (file := os.environ.get("TORCHELASTIC_ERROR_FILE")) and fault.code != Exit.STOPPED:
        details = {"py_callstack": trace, "timestamp": str(int(time.time()))}
        said = {"message": str(fault), "errorCode": int(fault.code), "extraInfo": details}
        with contextlib.suppress(OSError):  # a full disk must not cost the exit code too
            Path(file).write_text(json.dumps({"message": said}), encoding="utf-8")
    if "MUSTER_AGENT" not in os.environ:  # trainer.launch tells it, for all its ranks once
        rank = f" rank {os.environ['RANK']}" if "RANK" in os.environ else ""
        print(f"{trace}trainer:{rank} {fault} (exit {fault.code})", file=sys.stderr, flush=True)
    return fault.code


def leave(code: int) -> NoReturn:
    """End the process, at once if it has left a process group behind (`runtime.join`).

    Threads and exit functions are waited for as ever. What the interpreter does beyond that, taking
    every module apart, costs a second of a core once torch is there, and nobody sees it.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        drop_out(code)
    if "torch" not in sys.modules:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # as multiprocessing ends, too
    atexit._run_exitfuncs()  # noqa: SLF001
    _end(code)


def drop_out(code: int) -> NoReturn:
    """End the process without the interpreter's own end, which waits for threads and process groups."""
    for child in multiprocessing.active_children():  # loader workers: no atexit will see to them
        child.kill()
    _end(code)


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)
