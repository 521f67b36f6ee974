"""Where checkpoints are stored: a local folder, or a URL (`trainer/checkpoint/remote.py`).

Both have the same methods. Every checkpoint that `names` lists was written completely.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from trainer.checkpoint.manifest import ASIDE, MANIFEST_FILE, File, in_order, key_from, keyed
from trainer.config.environment import KEY
from trainer.regular import open_regular

if TYPE_CHECKING:
    from trainer.checkpoint.remote import Remote

_BLOCK = 1 << 20


Store: TypeAlias = "Local | Remote"


class Local:
    """Checkpoints in a folder of this machine or of a mounted file system.

    `folder` is a name below `root`. Every method may raise OSError.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: int | None = None

    def where(self, folder: str) -> str:
        """Return the path or URL of `folder`, for messages."""
        return str(self.root / folder)

    def names(self) -> list[str]:
        """Return the names of the checkpoints, oldest first."""
        try:
            # Not glob(), which finds nothing where it may not read.
            return in_order(path.name for path in self.root.iterdir())
        except FileNotFoundError:
            return []

    def open(self, folder: str, file: str) -> BinaryIO:
        """Open a regular file to read. Anything else is refused, e.g. a device that never ends."""
        return open_regular(self.root / folder / file)

    @contextlib.contextmanager
    def create(self, folder: str, file: str) -> Iterator[BinaryIO]:
        """Create a file to write; it is on stable storage when the block ends."""
        with (self.root / folder / file).open("wb") as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())

    def replace(self, folder: str, file: str, data: bytes) -> None:
        """Replace a file of a complete checkpoint, at once."""
        partial = f".{file}.partial"
        with self.create(folder, partial) as opened:
            opened.write(data)
        (self.root / folder / partial).replace(self.root / folder / file)
        _flush(self.root / folder)

    def size(self, folder: str, file: str) -> int:
        """Return a file's bytes."""
        return (self.root / folder / file).stat().st_size

    def free(self) -> int | None:
        """Return the free bytes, None if unknown."""
        return shutil.disk_usage(self.root).free

    def create_marker(self) -> str:
        """Create an empty file and return its name. A node that sees it has the same folder."""
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".shared-", dir=self.root, delete=False) as file:
            return Path(file.name).name

    def begin(self, name: str) -> str:
        """Create and return the folder to write the checkpoint `name` to."""
        folder = f".{name}.partial"
        path = self.root / folder
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True)
        self._lock = os.open(path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
        return folder

    def commit(self, folder: str, name: str) -> None:
        """Make the contents of `folder` the checkpoint `name`. Its manifest was written last."""
        target = self.root / name
        _flush(self.root / folder)
        if target.exists():  # a damaged checkpoint of the same step is kept, for inspection
            target.rename(_free_name(target.with_name(f"{name}.replaced")))
        (self.root / folder).rename(target)
        _flush(self.root)
        self._unlock()

    def discard(self, folder: str) -> None:
        """Remove the folder of a failed attempt."""
        shutil.rmtree(self.root / folder, ignore_errors=True)
        self._unlock()

    def remove(self, name: str) -> None:
        """Remove a checkpoint and the damaged ones it replaced."""
        # Renamed first: a half-removed checkpoint must not look like a damaged one.
        removed = self.root / f".{name}.removed"
        (self.root / name).rename(removed)
        shutil.rmtree(removed)
        for replaced in self.root.glob(f"{name}.replaced.*"):
            shutil.rmtree(replaced)

    def sweep(self) -> None:
        """Remove the folders of attempts whose process has ended."""
        for path in self.root.glob(".step-*"):
            with contextlib.suppress(OSError), _opened(path) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails: it is being written
                shutil.rmtree(path, ignore_errors=True)

    def set_aside(self, names: Iterable[str]) -> str:
        """Move checkpoints, and the damaged ones they replaced, to a new folder and return it."""
        aside = _free_name(self.root / ASIDE)  # beside the root may be another file system
        aside.mkdir()
        for name in names:
            for path in (*self.root.glob(f"{name}.replaced.*"), self.root / name):
                path.rename(aside / path.name)
        return str(aside)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _free_name(path: Path) -> Path:
    """Return `path` with the first free number appended."""
    number = 1
    while (free := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return free


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _flush(folder: Path) -> None:
    """Make the names in `folder` durable."""
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


def store_at(place: str | Path) -> Store:
    """Return the store of a folder or URL. Raises Fault(64) when no library knows the URL."""
    if "://" in str(place) and not str(place).startswith("file://"):
        from trainer.checkpoint.remote import Remote  # noqa: PLC0415  # only when it is asked for

        return Remote(str(place))
    return Local(Path(str(place).removeprefix("file://")))


def split(checkpoint: str) -> tuple[Store, str]:
    """Return the store of a checkpoint's path or URL, and its name in the store."""
    parent, slash, name = checkpoint.removeprefix("file://").rstrip("/").rpartition("/")
    return store_at(parent or slash or "."), name


def absolute(checkpoint: str) -> str:
    """Return a checkpoint's URL, or its path as no other text writes it, to compare it with another."""
    path = checkpoint.removeprefix("file://")
    return path if "://" in path else str(Path(path).resolve())


def difference(store: Store, folder: str, name: str, expected: File) -> str | None:
    """Return how a data file differs from its entry in the manifest, or None."""
    size = store.size(folder, name)
    if size != expected.size:
        return f"{name} has {size} bytes instead of {expected.size}"
    checksum, signature = 0, keyed(key) if (key := key_from()) else None
    with store.open(folder, name) as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
            if signature:
                signature.update(block)
    if checksum != expected.crc32:
        return f"{name} does not match its checksum in {MANIFEST_FILE}"
    if signature and not compare_digest(signature.hexdigest(), expected.signature):
        return f"{name} was not signed with this {KEY}"
    return None
