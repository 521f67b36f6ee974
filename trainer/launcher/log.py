"""What the processes of this node say, kept in the run folder as well: a pod's log goes with its pod.

A finished pod may be removed before anybody has read why (kubeflow/trainer 3419, 877). Standard output
and error of the launcher and of all below it go through this process, to where they went before and to
a file; neither a full disk nor a closed screen stops the other, nor the run.

    with kept(settings.run_folder / "logs"): ...
"""

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_LAST_WORDS = 2.0  # seconds to wait for the end of what others still hold open
_PIECE = 65536


@contextlib.contextmanager
def kept(folder: Path) -> Iterator[Path | None]:
    """Keep what is said in the block; yield the file, None where it is a terminal that is talked to."""
    if os.isatty(1) or os.isatty(2):
        yield None
        return
    path = folder / f"{socket.gethostname()}.log"
    file = _opened(path)
    if file is None:
        yield None
        return
    sys.stdout.flush()
    screens = {number: os.dup(number) for number in (1, 2)}
    pipes = {number: os.pipe() for number in (1, 2)}
    for number, (_, end) in pipes.items():
        os.dup2(end, number)
        os.close(end)
    heads = {head: screens[number] for number, (head, _) in pipes.items()}

    def complain(error: OSError) -> None:
        line = f"launch: {path}: {error.strerror}; words are missing there\n"
        write_all(screens[2], line.encode())

    copier = threading.Thread(target=_copy, args=(heads, file, complain), name="log", daemon=True)
    copier.start()
    try:
        yield path
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, screen in screens.items():
            os.dup2(screen, number)
        copier.join(timeout=_LAST_WORDS)


def _opened(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(file, f"--- {time.strftime('%Y-%m-%d %H:%M:%S %z')}\n".encode())
    except OSError as error:
        print(f"launch: {path}: {error.strerror}; no log is kept", file=sys.stderr, flush=True)
        return None
    return file


def _copy(heads: dict[int, int], file: int, complain: Callable[[OSError], None]) -> None:
    """Copy what comes from each head to its screen and to the file, until all have ended."""
    told = False
    while heads:
        for head in select.select(list(heads), [], [])[0]:
            piece = os.read(head, _PIECE)
            if not piece:
                del heads[head]
                os.close(head)
                continue
            write_all(heads[head], piece)  # a screen that is gone takes nothing
            error = write_all(file, piece)
            if error and not told:
                told = True
                complain(error)


def write_all(to: int, piece: bytes) -> OSError | None:
    """Write all of `piece`, or return why not."""
    try:
        while piece:
            piece = piece[os.write(to, piece) :]
    except OSError as error:
        return error
    return None
