"""Builds the image's CPU shape with what is here, and says what it is; `why_not()` says what is missing.

What a machine needs to reach its package index is passed on as it has it: SSL_CERT_FILE, and
UV_DEFAULT_INDEX or PIP_INDEX_URL. From its environment also:

    MUSTER_TEST_BASE=IMAGE      the base; else mmdebstrap makes one, or the Dockerfile's is pulled
    MUSTER_TEST_WHEELS=FOLDER   wheels of torch and torchvision; else what TORCH_BACKEND says, or torch's
                                CPU wheel in a folder of PIP_FIND_LINKS, or the lock's CUDA builds
"""

import functools
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

REVISION = "0123456789abcdef0123456789abcdef01234567"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

_DEBIAN = "bookworm"


@functools.cache
def why_not() -> str | None:
    """Return why no image can be built here, or None."""
    if os.geteuid() != 0:
        return "building the image without a daemon, and entering it, needs root"
    missing = [tool for tool in ("buildah", "unshare", "setpriv") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        f"namespaces are not permitted here: {tried.stderr.strip()}" if tried.returncode else None
    )


@dataclass(frozen=True)
class Image:
    """A built image: its configuration in Docker's words, its layers, its file system at `root`."""

    config: dict[str, Any]
    layers: list[str]
    root: Path
    backend: str

    @property
    def environment(self) -> dict[str, str]:
        return dict(one.split("=", 1) for one in self.config["Env"])


class Builder:
    """Builds in a store of its own, in the new folder `folder`; `remove` takes it all away."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._store = _store(folder)
        self._base = os.environ.get("MUSTER_TEST_BASE") or self._make_base()
        self._backend, wheels = _backend(folder)
        self._options = [f"--build-context=wheels={wheels}"] if wheels else []
        for name, secret in _secrets(folder).items():
            self._options += ["--secret", f"id={name},src={secret}"]
        self._options += [f"--build-arg=BASE_IMAGE={self._base}"] if self._base else []

    def build(self, source: Path, *, revision: str = REVISION) -> Image:
        """Build the image from the tree at `source`; what another build has made is used again."""
        tag = f"localhost/muster:{revision[:12]}"
        self._buildah(
            *("build", "--isolation", "chroot", "--network", "host", "--format", "docker"),
            *("--layers", "--file", str(source / "docker/Dockerfile"), "--tag", tag),
            *self._options,
            f"--build-arg=TORCH_BACKEND={self._backend}",
            *(f"--build-arg=VERSION={VERSION}", f"--build-arg=REVISION={revision}"),
            str(source),
        )
        found = json.loads(self._buildah("inspect", "--type", "image", tag))["Docker"]
        container = self._buildah("from", tag)
        root = Path(self._buildah("mount", container))
        return Image(found["config"], found["rootfs"]["diff_ids"], root, self._backend)

    def _make_base(self) -> str | None:
        """Make Debian with Python and nothing else, from its packages; None where that cannot be."""
        if shutil.which("mmdebstrap") is None:
            return None
        packed = self._folder / "base.tar"
        # Nothing is kept of a file system that a crash has spoilt, so dpkg need not wait for the disk.
        _run(
            *("mmdebstrap", "--variant=minbase", "--include=python3,python3-venv"),
            *(
                "--dpkgopt=force-unsafe-io",
                "--aptopt=Acquire::Languages none",
                _DEBIAN,
                str(packed),
            ),
        )
        container = self._buildah("from", "scratch")
        self._buildah("add", "--quiet", container, str(packed), "/")
        self._buildah("commit", "--quiet", "--rm", container, "localhost/base")
        packed.unlink()
        return "localhost/base"

    def _buildah(self, *arguments: str) -> str:
        return _run("buildah", *self._store, *arguments)


def _backend(folder: Path) -> tuple[str, str | None]:
    """Return TORCH_BACKEND and, for `wheels`, the folder that holds them."""
    if given := os.environ.get("MUSTER_TEST_WHEELS"):
        return "wheels", given
    if given := os.environ.get("TORCH_BACKEND"):
        return given, None
    for place in os.environ.get("PIP_FIND_LINKS", "").split():
        for wheel in sorted(Path(place).glob("torch-*+cpu-*.whl"), reverse=True):
            (folder / "wheels").mkdir()
            shutil.copy(wheel, folder / "wheels")
            return "wheels", str(folder / "wheels")
    return "locked", None


def _secrets(folder: Path) -> dict[str, Path]:
    """Return the files that the build gets as secrets, by their names."""
    found = {}
    if certificates := os.environ.get("SSL_CERT_FILE"):
        found["ca"] = Path(certificates)
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL")
    if index:
        found["index"] = folder / "index"
        found["index"].write_text(index)
    return found


def remove(folder: Path) -> None:
    """Unmount and delete what a Builder has made there."""
    subprocess.run(["buildah", *_store(folder), "rm", "--all"], capture_output=True, check=False)
    for mount in _mounts_below(folder):
        subprocess.run(["umount", "--lazy", mount], check=False)
    # A hundred thousand files, which no test is to wait for.
    subprocess.Popen(["rm", "-rf", str(folder)], start_new_session=True)


def _store(folder: Path) -> tuple[str, ...]:
    return ("--root", str(folder / "store"), "--runroot", str(folder / "run"))


def _mounts_below(folder: Path) -> Iterator[str]:
    """Yield what is mounted below `folder`, the newest first."""
    table = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    for line in reversed(table):
        if (place := line.split()[1]).startswith(f"{folder}/"):
            yield place


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout.strip()
