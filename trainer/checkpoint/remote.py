"""Checkpoints at a URL: any object store that fsspec supports (s3://, gs://, memory://).

An object store cannot rename a folder in one operation. So a checkpoint is written in its final place.
Its manifest is written last, and only a folder with a manifest counts as a checkpoint. fsspec comes with
torch; S3 needs the extra `s3`.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

from fsspec.core import url_to_fs

from trainer.checkpoint.manifest import ASIDE, MANIFEST_FILE, in_order
from trainer.config.exits import Exit, Fault

# Errors of these packages are raised unchanged; those of a storage library become OSError.
_OURS = {"builtins", "torch", "trainer"}


class Remote:
    """Checkpoints below a URL. The methods are the same as in `trainer.checkpoint.store.Local`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._fs, root = url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise Fault(
                Exit.CONFIG, f"TRAINER_CHECKPOINTS={url}: {error}; S3 needs `pip install s3fs`"
            ) from error
        self._root = str(root)

    def where(self, folder: str) -> str:
        return f"{self.url}/{folder}"

    def names(self) -> list[str]:
        return [name for name in self._folders() if self._exists(name, MANIFEST_FILE)]

    def open(self, folder: str, file: str) -> BinaryIO:
        with _as_os_error():
            return cast("BinaryIO", self._fs.open(self._path(folder, file), "rb"))

    @contextlib.contextmanager
    def create(self, folder: str, file: str) -> Iterator[BinaryIO]:
        with _as_os_error(), self._fs.open(self._path(folder, file), "wb") as opened:
            yield opened

    def replace(self, folder: str, file: str, data: bytes) -> None:
        with self.create(folder, file) as opened:  # an object appears when it is complete
            opened.write(data)

    def size(self, folder: str, file: str) -> int:
        with _as_os_error():
            return int(self._fs.size(self._path(folder, file)))

    def free(self) -> int | None:
        return None

    def begin(self, name: str) -> str:
        with _as_os_error():
            if self._exists(name, MANIFEST_FILE):  # a damaged checkpoint of the same step is kept
                self._move(self._path(name), self._free_name(f"{self._path(name)}.replaced"))
            elif self._fs.exists(self._path(name)):
                self._fs.rm(self._path(name), recursive=True)
            self._fs.makedirs(self._path(name), exist_ok=True)
        return name

    def commit(self, folder: str, name: str) -> None:
        pass

    def discard(self, folder: str) -> None:
        with contextlib.suppress(OSError), _as_os_error():
            self._fs.rm(self._path(folder), recursive=True)

    def remove(self, name: str) -> None:
        with _as_os_error():
            self._fs.rm(self._path(name, MANIFEST_FILE))
            self._fs.rm(self._path(name), recursive=True)
            for replaced in self._fs.glob(self._path(f"{name}.replaced.*")):
                self._fs.rm(replaced, recursive=True)

    def sweep(self) -> None:
        for name in self._folders():
            if not self._exists(name, MANIFEST_FILE):
                self.discard(name)

    def set_aside(self, names: Iterable[str]) -> str:
        with _as_os_error():
            aside = self._free_name(self._path(ASIDE))  # beside the root may be another bucket
            for name in names:
                for path in (*self._fs.glob(self._path(f"{name}.replaced.*")), self._path(name)):
                    self._move(str(path), aside + str(path).removeprefix(self._root))
        return self.where(aside.removeprefix(f"{self._root}/"))

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def _exists(self, *parts: str) -> bool:
        with _as_os_error():
            return bool(self._fs.exists(self._path(*parts)))

    def _folders(self) -> list[str]:
        """Return the folders that have a checkpoint's name, complete or not, oldest first."""
        with _as_os_error():
            if not self._fs.exists(self._root):
                return []
            paths = self._fs.ls(self._root, detail=False)
        return in_order(str(path).rstrip("/").rpartition("/")[2] for path in paths)

    def _free_name(self, path: str) -> str:
        """Return `path` with the first free number appended."""
        number = 1
        while self._fs.exists(free := f"{path}.{number}"):
            number += 1
        return free

    def _move(self, path: str, target: str) -> None:
        files = self._fs.find(path)
        for file in files:
            self._fs.cp_file(file, target + str(file).removeprefix(path))
        self._fs.rm(files)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] in _OURS:
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error
