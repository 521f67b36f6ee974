"""The files of a data set in folders, one subfolder per class, listed once per run.

A million paths as Python objects take 0.6 GiB in every rank and every worker. Here they are one array of
bytes, 40 MB, saved in a file: ranks and workers map it, and a restart need not list the folders.

    files = listed(root, ["cat", "dog"], suffixes={".jpg"}, keep=run / "listing-train.safetensors")
    path, label = files[0]
"""

import bisect
import contextlib
import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

log = logging.getLogger("trainer")

# A folder that changed more recently may change again within the same tick of the server's clock.
_SETTLED = 60 * 10**9  # ns


def listed(
    root: Path, classes: list[str], *, suffixes: set[str], keep: Path | None = None
) -> "Listing":
    """Return the files below the classes' folders, by class, each class in the order of its paths.

    Raises OSError if a folder cannot be read.
    The order is part of a run, which takes samples by their numbers. A listing in the file `keep` is
    used if no folder has changed since. Otherwise a new one is written there, unless a folder changed
    in the last minutes or there is no run folder, as in a check of a task.
    """
    if keep is not None:
        with contextlib.suppress(OSError, SafetensorError, KeyError, TypeError, ValueError):
            if (kept := _read(keep)).fits(root, classes):
                return kept
    now = time.time_ns()
    names, ends, firsts = bytearray(), [0], [0]
    changed: dict[str, int] = {}
    for name in classes:
        paths = _files(root, name, suffixes, changed)
        for path in paths:
            names += os.fsencode(path)
            ends.append(len(names))
        firsts.append(len(ends) - 1)
    about = {"root": str(root), "classes": classes, "changed": changed}
    listing = Listing(np.frombuffer(names, np.uint8), np.array(ends), firsts, about)
    at_rest = max(changed.values(), default=now) < now - _SETTLED
    if keep is not None and keep.parent.is_dir() and at_rest:
        _write(listing, keep)
    return listing


class Listing(Sequence[tuple[str, int]]):
    """Paths with their class numbers. `ends[i]:ends[i + 1]` of `names` is the path of file i."""

    def __init__(
        self,
        names: npt.NDArray[np.uint8],
        ends: npt.NDArray[np.int64],
        firsts: list[int],
        about: dict[str, Any],
        *,
        file: Path | None = None,
    ) -> None:
        self.names, self.ends, self.firsts = names, ends, firsts
        self.about, self._file = about, file

    def fits(self, root: Path, classes: list[str]) -> bool:
        """Return whether the listing is still right: no folder has changed, none is new or gone."""
        if (self.about["root"], self.about["classes"]) != (str(root), classes):
            return False
        try:
            return all(
                os.stat(f"{root}/{folder}").st_mtime_ns == then  # noqa: PTH116  # there may be many
                for folder, then in self.about["changed"].items()
            )
        except OSError:
            return False

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, index: int) -> tuple[str, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, int]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        place = range(len(self))[index]
        if isinstance(place, range):
            return [self[i] for i in place]
        path = os.fsdecode(self.names[self.ends[place] : self.ends[place + 1]].tobytes())
        return f"{self.about['root']}/{path}", bisect.bisect_right(self.firsts, place) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the file's path, so that a loader's worker maps the file too."""
        if self._file is not None:
            return _read, (self._file,)
        return Listing, (self.names, self.ends, self.firsts, self.about)


def _files(root: Path, name: str, suffixes: set[str], changed: dict[str, int]) -> list[str]:
    """Return the files of a class, relative to `root`; note in `changed` when each folder changed."""
    found = []
    above = len(str(root)) + 1
    changed[name] = (root / name).stat().st_mtime_ns
    for where, folders, files in os.walk(f"{root}/{name}", onerror=_refuse, followlinks=True):
        below = where[above:]
        for folder in folders:  # before it is read, so that a later change is noticed
            changed[f"{below}/{folder}"] = os.stat(f"{where}/{folder}").st_mtime_ns  # noqa: PTH116
        # A Path takes ten times as long.
        found += [f"{below}/{x}" for x in files if os.path.splitext(x)[1].lower() in suffixes]  # noqa: PTH122
    return sorted(found, key=lambda path: path.replace("/", "\0"))  # a folder before its neighbours


def _refuse(error: OSError) -> None:
    raise error  # os.walk would leave out a folder that cannot be read


def _read(file: Path) -> Listing:
    """Return the listing in a file, which is mapped."""
    with safe_open(file, framework="pt") as kept:
        names, ends = (kept.get_tensor(name).numpy() for name in ("names", "ends"))
        about = json.loads(kept.metadata()["about"])
    return Listing(names, ends, about.pop("firsts"), about, file=file)


def _write(listing: Listing, file: Path) -> None:
    tensors = {"names": torch.from_numpy(listing.names), "ends": torch.from_numpy(listing.ends)}
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        save_file(tensors, new, {"about": json.dumps(listing.about | {"firsts": listing.firsts})})
        new.replace(file)
    except OSError as error:
        log.warning(
            "data: the list of files cannot be saved and is made again at each start: %s: %s",
            file,
            error,
        )
        new.unlink(missing_ok=True)
