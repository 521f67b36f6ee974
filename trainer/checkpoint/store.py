"""Where checkpoints lie: a local folder, or a URL (`trainer/checkpoint/remote.py`).

Both kinds of store promise the same: what `names` lists was committed, whole, or was damaged since.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from trainer.checkpoint.manifest import LISTING, File, step_of

_BLOCK = 1 << 20


class Store(Protocol):
    """A folder of checkpoints. `folder` is a name below it; every method may raise OSError."""

    def where(self, folder: str) -> str:
        """Return the path or URL of `folder`, for people."""
        ...

    def names(self) -> list[str]:
        """Return the names of the checkpoints, oldest first."""
        ...

    def open(self, folder: str, file: str) -> BinaryIO:
        """Open a file to read it."""
        ...

    def create(self, folder: str, file: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Write a file anew; it is on stable storage when the block ends."""
        ...

    def size(self, folder: str, file: str) -> int:
        """Return a file's bytes."""
        ...

    def free(self) -> int | None:
        """Return the bytes that can still be written, None where that is not known."""
        ...

    def mark(self) -> str | None:
        """Leave a sign that other nodes can look for, None where there is no need to."""
        ...

    def sees(self, sign: str) -> bool:
        """Return whether the sign is seen from here."""
        ...

    def unmark(self, sign: str) -> None:
        """Take the sign away."""
        ...

    def begin(self, name: str) -> str:
        """Make room for a checkpoint and return the folder to write it to."""
        ...

    def commit(self, folder: str, name: str) -> None:
        """Let the checkpoint in `folder`, whose listing has been written last, be `name`."""
        ...

    def discard(self, folder: str) -> None:
        """Remove what a failed attempt left."""
        ...

    def remove(self, name: str) -> None:
        """Remove a checkpoint, and damaged ones that made way for it; it stops being one first."""
        ...

    def sweep(self) -> None:
        """Remove what dead attempts left, but nothing that is being written."""
        ...

    def set_aside(self) -> str | None:
        """Move all checkpoints out of the way and return where to, None when there are none."""
        ...


class Local:
    """Checkpoints in a folder of this machine, or of a file system that it mounts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: int | None = None

    def where(self, folder: str) -> str:
        return str(self.root / folder)

    def names(self) -> list[str]:
        found = [
            (step, path.name)
            for path in self.root.glob("step-*")
            if (step := step_of(path.name)) is not None
        ]
        return [name for _, name in sorted(found)]

    def open(self, folder: str, file: str) -> BinaryIO:
        return (self.root / folder / file).open("rb")

    @contextlib.contextmanager
    def create(self, folder: str, file: str) -> Iterator[BinaryIO]:
        with (self.root / folder / file).open("wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())

    def size(self, folder: str, file: str) -> int:
        return (self.root / folder / file).stat().st_size

    def free(self) -> int | None:
        return shutil.disk_usage(self.root).free

    def mark(self) -> str | None:
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(prefix=".shared-", dir=self.root)
        os.close(descriptor)
        return Path(path).name

    def sees(self, sign: str) -> bool:
        return (self.root / sign).exists()

    def unmark(self, sign: str) -> None:
        (self.root / sign).unlink(missing_ok=True)

    def begin(self, name: str) -> str:
        folder = f".{name}.partial"
        path = self.root / folder
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True)
        self._lock = os.open(path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a process that dies lets go of it
        return folder

    def commit(self, folder: str, name: str) -> None:
        target = self.root / name
        _flush(self.root / folder)
        if target.exists():  # a damaged one of the same step: it stays, for inspection
            target.rename(_free_name(target.with_name(f"{name}.replaced")))
        (self.root / folder).rename(target)
        _flush(self.root)
        self._unlock()

    def discard(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)
        self._unlock()

    def remove(self, name: str) -> None:
        # Renamed first: one that is killed half-way through must not look damaged.
        leaving = self.root / f".{name}.leaving"
        (self.root / name).rename(leaving)
        shutil.rmtree(leaving)
        for replaced in self.root.glob(f"{name}.replaced.*"):
            shutil.rmtree(replaced)

    def sweep(self) -> None:
        for path in self.root.glob(".step-*"):
            if not _is_locked(path):
                shutil.rmtree(path, ignore_errors=True)

    def set_aside(self) -> str | None:
        if not self.names():
            return None
        aside = _free_name(self.root)
        self.root.rename(aside)
        return str(aside)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _free_name(path: Path) -> Path:
    """Return `path` with the first number behind it that is not taken."""
    number = 1
    while (free := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return free


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _flush(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def store_at(place: str | Path) -> Store:
    """Return the store of a folder or URL. Raises Fault(64) when no library knows the URL."""
    if "://" in str(place) and not str(place).startswith("file://"):
        from trainer.checkpoint.remote import Remote  # noqa: PLC0415  # only when it is asked for

        return Remote(str(place))
    return Local(Path(str(place).removeprefix("file://")))


def split(checkpoint: str) -> tuple[Store, str]:
    """Return the store that a checkpoint's path or URL lies in, and its name there."""
    parent, _, name = checkpoint.rstrip("/").rpartition("/")
    return store_at(parent or "."), name


def difference(store: Store, folder: str, name: str, expected: File) -> str | None:
    """Return how a data file differs from what its manifest says, or None."""
    size = store.size(folder, name)
    if size != expected.size:
        return f"{name} has {size} bytes instead of {expected.size}"
    with store.open(folder, name) as file:
        if _checksum(file) != expected.crc32:
            return f"{name} does not have the checksum that {LISTING} states"
    return None


def _checksum(file: BinaryIO) -> int:
    checksum = 0
    while block := file.read(_BLOCK):
        checksum = zlib.crc32(block, checksum)
    return checksum
