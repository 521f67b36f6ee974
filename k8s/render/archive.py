"""Pack the folder that travels with a job as an archive: the same bytes for the same files.

It has the files that git tracks, and new files that .gitignore does not name. Outside a repository it
has all files except hidden ones and those that .gitignore names. Empty folders are not kept, as in git.

    render.py job.yaml --set code.path=. -o build
"""

import contextlib
import gzip
import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from k8s.base.errors import config_error, in_one_line
from trainer.commit import commit_of

# Compressed bytes, by code.via. A ConfigMap holds 1 MiB; an archive on a claim is read into memory.
LIMITS = {"configMap": 900 * 1024, "pvc": 256 * 1024**2}
_LARGEST = 10  # files that a refusal lists
_KEYS = ("*.pem", "*.key", ".env", ".env.*", "credentials", "credentials.json")
_TIMEOUT = 60  # seconds for git


@dataclass(frozen=True)
class Archive:
    """The archive, the paths of its files, and those of files left out because they look like keys.

    `commit` is git's, with -dirty if files are new or have changed. It is not in the archive, so that
    this is the same for the same files.
    """

    content: bytes
    files: frozenset[str]
    left_out: tuple[str, ...]
    commit: str | None


def pack(
    folder: Path, *, label: str, via: str = "configMap", output: Path | None = None
) -> Archive:
    """Pack a folder, within the limit of `via`. Raises Fault(64), its text beginning with `label`.

    What is below `output`, where renderings are written, stays: else each would contain the one before.
    """
    folder = folder.resolve()
    written = output and output.resolve()
    if written and (folder.is_relative_to(written) or not written.is_relative_to(folder)):
        written = None
    try:
        found = sorted(set(_list(folder)), key=os.fsencode)
        if written:
            found = [path for path in found if not (folder / path).is_relative_to(written)]
        kept = [path for path in found if not _looks_like_a_key(path)]
        if not kept:
            raise config_error(f"{label}: has no files to pack; see .gitignore")
        content = _compress(folder, kept, label, via)
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", None) or b""
        text = in_one_line(said.decode(errors="replace") or error)
        raise config_error(f"{label}: git cannot list the files: {text}") from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise config_error(f"{label}: {where}{error.strerror or error}") from None
    left_out = tuple(path for path in found if _looks_like_a_key(path))
    commit = commit_of(folder, new_files=True, without=written)
    return Archive(content, frozenset(kept), left_out, commit)


def _looks_like_a_key(path: str) -> bool:
    name = path.rpartition("/")[2]
    is_ssh = name.startswith("id_") and "." not in name.removesuffix(".pub")
    return is_ssh or any(fnmatch(name, form) for form in _KEYS)


def _list(folder: Path) -> Iterator[str]:
    """Yield the paths of the files that travel, below `folder`."""
    try:
        inside = _git(folder, "rev-parse", "--is-inside-work-tree", check=False)
    except FileNotFoundError:
        yield from _all_files(folder)
        return
    if inside.strip() == b"true":
        yield from _of_git(folder, "-c", "-o", "--exclude-standard")
        return
    # git itself reads .gitignore here, with an empty index.
    with tempfile.TemporaryDirectory() as repository:
        _git(folder, "init", "--quiet", "--bare", repository)
        where = (f"--git-dir={repository}", f"--work-tree={folder}")
        for path in _of_git(folder, "-o", "--exclude-standard", where=where):
            if not _is_hidden(path):
                yield path


def _of_git(folder: Path, *options: str, where: tuple[str, ...] = ()) -> Iterator[str]:
    for name in _git(folder, *where, "ls-files", "-z", *options).split(b"\0"):
        path = os.fsdecode(name).rstrip("/")
        place = folder / path
        if not path or not os.path.lexists(place):  # deleted, but still in git's index
            continue
        if place.is_dir() and not place.is_symlink():  # a repository in this one
            yield from (f"{path}/{below}" for below in _list(place))
        else:
            yield path


def _git(folder: Path, *arguments: str, check: bool = True) -> bytes:
    # In a git hook, variables are set that name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=_TIMEOUT,
        check=check,
    ).stdout


def _all_files(folder: Path) -> Iterator[str]:
    """Yield all files except hidden ones, if git is not installed."""
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        for name in [*files, *links]:
            path = (Path(parent) / name).relative_to(folder).as_posix()
            if name == ".gitignore":
                raise config_error(f"code.path: {path} needs git, which is not installed here")
            if not _is_hidden(path):
                yield path
        folders[:] = [name for name in folders if not name.startswith(".")]


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


class _TooLarge(Exception):
    pass


class _Limited(gzip.GzipFile):
    """Refuses more than `limit` compressed bytes, so that a folder of gigabytes is not read to its end.

    It is not `into` that refuses: gzip writes there when it is closed, too, which must not fail.
    """

    def __init__(self, into: io.BytesIO, limit: int) -> None:
        # gzip's own header has no time and no name.
        super().__init__("", "wb", compresslevel=9, fileobj=into, mtime=0)
        self._into, self._limit = into, limit

    def write(self, data: Any) -> int:
        if self._into.tell() > self._limit:
            raise _TooLarge
        return super().write(data)


def _compress(folder: Path, paths: list[str], label: str, via: str) -> bytes:
    made, limit = io.BytesIO(), LIMITS[via]
    with (
        contextlib.suppress(_TooLarge),
        _Limited(made, limit) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            _add(archive, folder, path, label)
    if made.tell() > limit:
        raise config_error(_too_large(folder, paths, label, via))
    return made.getvalue()


def _add(archive: tarfile.TarFile, folder: Path, path: str, label: str) -> None:
    """Add a file or link without what differs between machines: owner, time, mask."""
    place = folder / path
    status = place.lstat()
    entry = tarfile.TarInfo(path)
    if stat.S_ISLNK(status.st_mode):
        entry.type, entry.mode, entry.linkname = tarfile.SYMTYPE, 0o777, str(place.readlink())
        target = Path(os.path.realpath(place))
        if Path(entry.linkname).is_absolute() or not target.is_relative_to(folder):
            raise config_error(
                f"{label}: {path} is a link to {entry.linkname}, outside the folder; make it a file, or "
                "name it in .gitignore"
            )
        archive.addfile(entry)
        return
    if not stat.S_ISREG(status.st_mode):
        raise config_error(f"{label}: {path} is not a regular file; name it in .gitignore")
    entry.mode, entry.size = (0o755 if status.st_mode & 0o111 else 0o644), status.st_size
    with place.open("rb") as file:
        archive.addfile(entry, file)


def _too_large(folder: Path, paths: list[str], label: str, via: str) -> str:
    sizes = {}
    for path in paths:
        with contextlib.suppress(OSError):
            sizes[path] = (folder / path).lstat().st_size
    largest = sorted(sizes, key=lambda path: -sizes[path])[:_LARGEST]
    listed = ", ".join(f"{path} ({sizes[path] / 1024:,.0f} KiB)" for path in largest)
    too_much = ", too much for a ConfigMap" if via == "configMap" else ""
    way = "code.via=pvc, " if via == "configMap" else ""
    return (
        f"{label}: more than {LIMITS[via] // 1024:,} KiB when compressed{too_much}; name what the job "
        f"does not need in .gitignore, or use {way}code.git, an image with the code, or a volume; the "
        f"largest: {listed}"
    )
