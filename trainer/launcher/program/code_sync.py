"""Takes a changed working folder into a running job: `python -m k8s sync` copies it to each pod.

The ranks never see half of it: the new code waits in a folder next to the current code, and the
launcher replaces the current code after the ranks have ended. The caller must put it on all nodes
before it asks the first one to restart:

    python -m trainer.launcher.program.code_sync put SIZE SHA256 [COMMIT] < code.tar.gz   # then `commit`
    python -m trainer.launcher.program.code_sync restart SECONDS

    take(os.environ)            # the launcher, before each round
"""

import contextlib
import hashlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import BinaryIO

from trainer.config.exits import Exit, Fault
from trainer.launcher.program.code_archive import BESIDE, extract, names

# In BESIDE: code being copied, code that waits for the ranks to end, and the archive of what runs.
_PUT, _NEXT, _ARCHIVE = "put", "next", "code.tar.gz"
_FILES, _COMMIT, _GO = "files", "commit", "go"  # in the first two, next to the archive
_TURN = 0.02  # seconds

_log = logging.getLogger("launch")


def is_due(environment: Mapping[str, str], *, failed: bool) -> bool:
    """Return whether the ranks must end for new code; `failed`: one failed, perhaps by a lost peer."""
    if not (folder := environment.get("MUSTER_CODE_FOLDER")):
        return False
    waiting = Path(folder, BESIDE, _NEXT)
    return (waiting / _GO).exists() or (failed and waiting.exists())


def take(environment: MutableMapping[str, str]) -> None:
    """Replace the current code by the code that waits, if there is any. Raises Fault(65) or (71).

    Call it while no rank runs. Files that the ranks have written stay.
    """
    if not (folder := environment.get("MUSTER_CODE_FOLDER")):
        return
    place, beside = Path(folder), Path(folder, BESIDE)
    waiting = beside / _NEXT
    if not waiting.is_dir():
        return
    try:
        data, commit = (waiting / _ARCHIVE).read_bytes(), (waiting / _COMMIT).read_text()
        new = names(data)
        for name in names(_current(environment)) - new:
            with contextlib.suppress(OSError):  # removed meanwhile
                (place / name).unlink()
        for name in sorted(new):
            _replace(waiting / _FILES / name, place / name)
        (waiting / _ARCHIVE).replace(beside / _ARCHIVE)
        shutil.rmtree(waiting)
    except OSError as error:
        raise Fault(Exit.MACHINE, f"{folder}: the new code cannot be put there: {error}") from None
    environment["MUSTER_CODE_SHA256"] = hashlib.sha256(data).hexdigest()
    environment["MUSTER_CODE_COMMIT"] = commit
    _log.info("the ranks start with the new code %s", environment["MUSTER_CODE_SHA256"])


def _replace(source: Path, target: Path) -> None:
    if target.is_dir() and not target.is_symlink():  # a folder becomes a file
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # All files of an archive have the same time, so Python would use its cache for a file whose size
    # is unchanged.
    os.utime(source, follow_symlinks=False)
    source.replace(target)


def _current(environment: Mapping[str, str]) -> bytes:
    """Return the archive of the code that runs: the newest one put here, or else the job's own."""
    file = Path(environment["MUSTER_CODE_FOLDER"], BESIDE, _ARCHIVE)
    return (file if file.exists() else Path(environment["MUSTER_CODE"])).read_bytes()


def main(arguments: Sequence[str]) -> int:
    """Do one of the three steps in a pod; print the result, and return the exit code."""
    beside = Path(os.environ["MUSTER_CODE_FOLDER"], BESIDE)
    try:
        match arguments:
            case ["put", size, sha256, *commit]:
                print(_put(sys.stdin.buffer, int(size), sha256, "".join(commit)))
            case ["commit"]:
                shutil.rmtree(beside / _NEXT, ignore_errors=True)
                (beside / _PUT).rename(beside / _NEXT)
            case ["restart", seconds]:
                print("taken" if _restart(beside / _NEXT, float(seconds)) else "asked")
            case _:
                raise Fault(Exit.CONFIG, f"{arguments}: no such step")  # noqa: TRY301
    except OSError as error:
        print(f"{beside}: {error}")
        return Exit.MACHINE
    except Fault as fault:
        print(fault)
        return fault.code
    return Exit.DONE


def _put(given: BinaryIO, size: int, sha256: str, commit: str) -> str:
    """Check and unpack an archive, without using it yet; return "put", or "same" if it runs already."""
    data, beside = given.read(size), Path(os.environ["MUSTER_CODE_FOLDER"], BESIDE)
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise Fault(
            Exit.DATA, f"the archive came with the hash {found}, and not {sha256}; try again"
        )
    current = _current(os.environ)
    if hashlib.sha256(current).hexdigest() == sha256 and not (beside / _NEXT).exists():
        return "same"
    if not names(data) & names(current):
        raise Fault(
            Exit.CONFIG, "the folder has no file of the code that runs; is it another job's?"
        )
    put = beside / _PUT
    shutil.rmtree(put, ignore_errors=True)
    extract(data, put / _FILES, label="the new code")
    (put / _ARCHIVE).write_bytes(data)
    (put / _COMMIT).write_text(commit)
    return "put"


def _restart(waiting: Path, seconds: float) -> bool:
    """Ask the launcher to end the ranks; wait, and return whether it has taken the code."""
    with contextlib.suppress(FileNotFoundError):  # taken already, after another node was asked
        (waiting / _GO).touch()
    end = time.monotonic() + seconds
    while waiting.exists() and time.monotonic() < end:
        time.sleep(_TURN)
    return not waiting.exists()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
