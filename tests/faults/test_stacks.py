"""Stacks can be read and written safely while C++ threads enter and leave Python."""

import ctypes
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trainer.watch import position, stacks

SECONDS = 5.0


@pytest.mark.slow
def test_looking_does_not_end_the_process(start: Any) -> None:
    """faulthandler.dump_traceback(all_threads=True) crashed in two of three runs of this length."""
    ended = start("-m", "tests.faults.test_stacks").end(timeout=120)
    assert ended.code == 0, ended.stderr
    looks, dumps, whole = map(int, ended.stderr.splitlines()[-1].split())
    assert looks > 100
    assert dumps > 10
    assert whole == dumps  # each has the thread that writes it


def test_python_3_13_reads_the_frames_that_python_3_12_reads() -> None:
    ways = ["_Py_DumpTraceback", "PyThreadState_GetFrame"]
    seen: dict[str, list[stacks.Frame]] = {}

    def look() -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:  # until the main thread waits for this one
            for way in ways:
                with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as scratch:
                    if way != ways[0]:
                        patch.setattr(stacks, "_dump", None)
                    seen[way] = stacks.main_stack(scratch)
            waits = any(frame.function == "join" for frame in seen[ways[0]])
            if waits and seen[ways[0]] == seen[ways[1]]:
                return

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    first, second = seen.values()
    assert first == second
    assert "test_python_3_13_reads" in str(first)


def test_threads_that_wait_are_in_the_file_too(tmp_path: Path) -> None:
    over = threading.Event()

    def waits_in_here() -> None:
        over.wait()

    waiting = threading.Thread(target=waits_in_here, name="one that waits")
    waiting.start()
    stacks.write_stacks(tmp_path / "stack")
    over.set()
    waiting.join()
    text = (tmp_path / "stack").read_text(encoding="utf-8")
    assert "in test_threads_that_wait_are_in_the_file_too" in text.partition("# one that waits")[0]
    assert "in waits_in_here" in text.partition("# one that waits")[2]


def main() -> None:
    looks = dumps = whole = 0
    over, file = threading.Event(), Path("stack")

    def watch() -> None:
        nonlocal looks, dumps, whole
        while not over.is_set():
            with tempfile.TemporaryFile() as scratch:
                for _ in range(10):
                    place = position.main_position(scratch, device="cpu", is_alone=False)
                    assert place
                    assert "in main" in place.line
                    looks += 1
            stacks.write_stacks(file)
            text = file.read_text(encoding="utf-8")
            assert "in main" in text
            dumps += 1
            whole += "in watch" in text

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
    print(looks, dumps, whole, file=sys.stderr)


if __name__ == "__main__":
    main()
