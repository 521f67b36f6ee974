"""Unpacks the working folder that came with the job: a tar.gz whose hash is in the manifest.

    unpack(os.environ)          # MUSTER_CODE, MUSTER_CODE_SHA256, MUSTER_CODE_FOLDER

`render.py` makes the archive (`code.path` of a job file). If it was changed since, it is refused.
"""

import gzip
import hashlib
import io
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from trainer.config.exits import Exit, Fault
from trainer.regular import open_regular

# Bytes, as in k8s/render/archive.py; somebody who can write to the claim may put more there.
_LARGEST = 256 << 20
BESIDE = ".muster-sync"  # in the folder: code that was put there later (code_sync.py)


def unpack(environment: Mapping[str, str]) -> Path:
    """Unpack the archive and return its folder. Raises Fault(64), (65) or (71)."""
    file = environment["MUSTER_CODE"]
    wanted, folder = environment.get("MUSTER_CODE_SHA256"), environment.get("MUSTER_CODE_FOLDER")
    if not wanted or not folder:
        raise Fault(
            Exit.CONFIG,
            f"MUSTER_CODE={file!r}: set MUSTER_CODE_SHA256 and MUSTER_CODE_FOLDER, too",
        )
    try:
        with open_regular(Path(file), at_most=_LARGEST) as opened:
            data = opened.read()
    except OSError as error:
        raise Fault(Exit.DATA, f"MUSTER_CODE={file!r}: {error.strerror}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != wanted:
        raise Fault(
            Exit.DATA,
            f"MUSTER_CODE={file!r}: has the hash {found}, and not {wanted} of MUSTER_CODE_SHA256; "
            "render and submit the job again",
        )
    # A new container starts with the manifest's code, without what was put there later.
    shutil.rmtree(Path(folder, BESIDE), ignore_errors=True)
    extract(data, Path(folder), label=f"MUSTER_CODE={file!r}")
    return Path(folder)


def extract(data: bytes, folder: Path, *, label: str) -> None:
    """Unpack an archive whose hash is right. Raises Fault(65) or (71)."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            if hasattr(tarfile, "data_filter"):  # Python 3.10.12, 3.11.4; the hash is right anyway
                archive.extractall(folder, filter="data")
            else:
                archive.extractall(folder)  # noqa: S202
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Fault(Exit.DATA, f"{label}: cannot be unpacked: {error}") from None
    except OSError as error:
        raise Fault(
            Exit.MACHINE, f"MUSTER_CODE_FOLDER={str(folder)!r}: cannot be written: {error}"
        ) from None


def names(data: bytes) -> set[str]:
    """Return the paths of the files and links in an archive whose hash is right."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        return set(archive.getnames())
