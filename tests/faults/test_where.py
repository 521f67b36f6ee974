"""To look at the main thread is safe while threads of C++ come into Python and go."""

import ctypes
import sys
import threading
import time
from typing import Any

import pytest

from trainer.guards import where

SECONDS = 5.0


@pytest.mark.slow
def test_looking_does_not_end_the_process(start: Any) -> None:
    """By all threads' stacks it did, in two of three runs as long as this."""
    ended = start("-m", "tests.faults.test_where").end(timeout=120)
    assert ended.code == 0, ended.words
    assert int(ended.words.split()[-1]) > 100


def main() -> None:
    looks, over = 0, threading.Event()

    def watch() -> None:
        nonlocal looks
        while not over.is_set():
            place = where.look(threading.main_thread(), device="cpu")
            assert place
            assert "in main" in place.line
            looks += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    body = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)
    libc, end = ctypes.CDLL(None), time.monotonic() + SECONDS
    while time.monotonic() < end:
        threads = [ctypes.c_ulong() for _ in range(20)]
        for thread in threads:
            libc.pthread_create(ctypes.byref(thread), None, body, None)
        for thread in threads:
            libc.pthread_join(thread, None)
    over.set()
    watcher.join()
    print(looks, file=sys.stderr)


if __name__ == "__main__":
    main()
