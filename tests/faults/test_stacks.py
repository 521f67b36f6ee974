"""Stacks can be read and written safely while C++ threads enter and leave Python."""

import ctypes
import os
import re
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


class _SlowFile(type(Path())):  # type: ignore[misc]  # PosixPath, up to Python 3.11
    """Each write takes about a millisecond, as on a network's file system."""

    def open(self, mode: str = "r", **kwargs: Any) -> Any:
        if mode != "xb":
            return super().open(mode, **kwargs)
        return os.fdopen(os.open(self, os.O_CREAT | os.O_WRONLY | os.O_SYNC), "wb", buffering=0)


@pytest.mark.parametrize(
    ("calls", "kind"), [(3, _SlowFile), (120, Path)], ids=["slow file", "deep"]
)
def test_each_thread_that_waits_is_in_the_file_to_its_end(
    tmp_path: Path, calls: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is _SlowFile:
        monkeypatch.setattr(stacks, "_LIMIT", 30.0)  # a busy disk takes longer
    over = threading.Event()

    def waits_in_here(more: int) -> None:
        if more:
            waits_in_here(more - 1)
        over.wait()

    waiting = [
        threading.Thread(target=waits_in_here, args=(calls,), name=f"wait {n}") for n in range(4)
    ]
    for thread in waiting:
        thread.start()
    try:
        stacks.write_stacks(kind(tmp_path / "stack"))
    finally:
        over.set()
        for thread in waiting:
            thread.join()
    text = (tmp_path / "stack").read_text(encoding="utf-8")
    _, main_stack, *others = re.split("^# ", text, flags=re.MULTILINE)
    assert "in test_each_thread_that_waits" in main_stack
    for thread in waiting:
        stack = next(other for other in others if other.startswith(f"{thread.name}\n"))
        # faulthandler writes 100 frames of a thread at most; its last line then depends on the Python.
        assert stack.count("in waits_in_here\n") == min(calls + 1, 98), stack
        assert calls > 100 or stack.endswith("in _bootstrap\n"), stack


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
