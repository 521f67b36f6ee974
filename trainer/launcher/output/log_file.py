"""Copies the output of this node's processes to the run folder: a pod's log is lost with the pod.

A finished pod may be removed before anybody has read its log (kubeflow/trainer 3419, 877). A full
disk or a closed stdout stops neither the other copy nor the run.

    with log_to_file(settings.run_folder / "logs") as path: ...
"""

import contextlib
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from trainer.regular import open_to_append

_TIMEOUT = 2.0  # seconds to wait for output of processes that outlive the block
_PIPE_SIZE = 65536


@contextlib.contextmanager
def log_to_file(folder: Path) -> Iterator[Path | None]:
    """Copy stdout and stderr of this process and its children, and yield the file's path.

    Yields None and copies nothing on a terminal, where progress bars need it, or if the file cannot be
    written.
    """
    path = folder / f"{socket.gethostname()}.log"
    file = None if os.isatty(1) or os.isatty(2) else _open(path)
    if file is None:
        yield None
        return
    sys.stdout.flush()
    originals = {number: os.dup(number) for number in (1, 2)}
    targets = {}
    for number, original in originals.items():
        read_end, write_end = os.pipe()
        os.dup2(write_end, number)
        os.close(write_end)
        targets[read_end] = original

    def warn(error: OSError) -> None:
        line = f"launch: {path}: {error.strerror}; its log is incomplete\n"
        write_all(originals[2], line.encode())

    copier = threading.Thread(target=_copy, args=(targets, file, warn), name="log", daemon=True)
    copier.start()
    try:
        yield path
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in originals.items():
            os.dup2(original, number)
        copier.join(timeout=_TIMEOUT)


def _open(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_to_append(path)
        now = datetime.now().astimezone().isoformat(" ", "milliseconds")
        os.write(file, f"--- {now}\n".encode())
    except OSError as error:
        print(f"launch: {path}: {error.strerror}; no log is kept", file=sys.stderr, flush=True)
        return None
    return file


def _copy(targets: dict[int, int], file: int, warn: Callable[[OSError], None]) -> None:
    """Copy each pipe of `targets` to its descriptor and to `file`, until all have ended."""
    warned = False
    while targets:
        for pipe in select.select(list(targets), [], [])[0]:
            data = os.read(pipe, _PIPE_SIZE)
            if not data:
                del targets[pipe]
                os.close(pipe)
                continue
            write_all(targets[pipe], data)  # an error is ignored: it may be closed
            error = write_all(file, data)
            if error and not warned:
                warned = True
                warn(error)


def write_all(descriptor: int, data: bytes) -> OSError | None:
    """Write all of `data`; return the error if that fails."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        return error
    return None
