"""Builds the CPU image with the tools of this machine; `why_not()` says what is missing.

The variables with which a machine reaches its package index are passed on: SSL_CERT_FILE, and
UV_DEFAULT_INDEX or PIP_INDEX_URL. Other variables:

    MUSTER_TEST_ENGINE=TOOL     buildah or docker; else the first of them that works
    MUSTER_TEST_BASE=IMAGE      the base; else mmdebstrap makes buildah's, or the Dockerfile's is pulled
    MUSTER_TEST_WHEELS=FOLDER   wheels of torch and torchvision; else what TORCH_BACKEND says, or torch's
                                CPU wheel in a folder of PIP_FIND_LINKS, or the lock's CUDA builds
"""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

REVISION = "0123456789abcdef0123456789abcdef01234567"
LOCK = hashlib.sha256((ROOT / "docker/requirements.txt").read_bytes()).hexdigest()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

# The engines, and what must work for each: to enter what buildah makes takes namespaces, and so root.
_ENGINES = {
    "buildah": ["unshare", "--mount", "--pid", "--fork", "setpriv", "--clear-groups", "true"],
    "docker": ["docker", "info"],
}
_DEBIAN, _PACKAGES = "bookworm", "python3,python3-venv"
_KEPT = ROOT / "build/image-store"  # buildah's layers are kept between runs


@functools.cache
def why_not() -> str | None:
    """Return why no image can be built here, or None; an engine that was requested must work."""
    found = engine()
    if found in _ENGINES:
        return None
    assert "MUSTER_TEST_ENGINE" not in os.environ, found
    return found


@functools.cache
def engine() -> str:
    """Return the engine: buildah if its image can be entered, or docker; else why neither works."""
    wanted = os.environ.get("MUSTER_TEST_ENGINE")
    reasons = []
    for tool in [wanted] if wanted else _ENGINES:
        command = _ENGINES[tool]
        missing = [name for name in (tool, command[0]) if shutil.which(name) is None]
        if missing:
            reasons.append(f"{tool}: {missing[0]} is not installed")
            continue
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return tool
        reasons.append(f"{tool}: {' '.join(command)}: {' '.join(tried.stderr.split())}")
    return "; ".join(reasons)


@dataclass(frozen=True)
class Image:
    """A built image: its configuration in Docker's words, its layers, its file system at `root`.

    `engine` runs it as `tag`; "" after buildah, which runs no containers.
    """

    config: dict[str, Any]
    layers: list[str]
    root: Path
    backend: str
    engine: str
    tag: str

    @property
    def environment(self) -> dict[str, str]:
        return dict(one.split("=", 1) for one in self.config["Env"])


class Builder:
    """Builds in the new folder `folder`; buildah uses the store of this checkout; see `remove`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        _KEPT.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._engine = engine()
        self._store = _store(folder)
        self._base = os.environ.get("MUSTER_TEST_BASE") or self._make_base()
        self._backend, wheels = _backend(folder)
        self._options = [f"--build-context=wheels={wheels}"] if wheels else []
        for name, secret in _secrets(folder).items():
            self._options += ["--secret", f"id={name},src={secret}"]
        self._options += [f"--build-arg=BASE_IMAGE={self._base}"] if self._base else []

    def build(self, source: Path, *, revision: str = REVISION) -> Image:
        """Build the image from the tree at `source`; layers of earlier builds are used again."""
        tag = f"localhost/muster:{revision[:12]}"
        buildah = ["--isolation=chroot", "--network=host", "--format=docker", "--layers"]
        self._do(
            *("build", *(buildah if self._engine == "buildah" else [])),
            *("--file", str(source / "docker/Dockerfile"), "--tag", tag),
            *self._options,
            f"--build-arg=TORCH_BACKEND={self._backend}",
            *(f"--build-arg=VERSION={VERSION}", f"--build-arg=REVISION={revision}"),
            f"--build-arg=LOCK={LOCK}",
            str(source),
        )
        if self._engine == "buildah":
            found = json.loads(self._do("inspect", "--type", "image", tag))["Docker"]
            container = self._do("from", tag)
            with (self._folder / "containers").open("a") as file:
                file.write(f"{container}\n")
            root, layers = Path(self._do("mount", container)), found["rootfs"]["diff_ids"]
            return Image(found["config"], layers, root, self._backend, "", tag)
        (found,) = json.loads(self._do("image", "inspect", tag))
        root = self._unpacked(tag, self._folder / f"root-{revision[:12]}")
        layers = found["RootFS"]["Layers"]
        return Image(found["Config"], layers, root, self._backend, self._engine, tag)

    def _unpacked(self, tag: str, root: Path) -> Path:
        """Return a copy of an image's files, because an engine does not give access to them."""
        root.mkdir()
        packed = self._folder / "image.tar"
        container = self._do("create", tag)
        self._do("export", "--output", str(packed), container)
        self._do("rm", container)
        # Only root can make devices, and no test needs them.
        _run("tar", "--extract", "--exclude=dev/*", f"--directory={root}", f"--file={packed}")
        packed.unlink()
        return root

    def _make_base(self) -> str | None:
        """Make Debian with only Python, from its packages; None if that is not possible."""
        if self._engine != "buildah" or shutil.which("mmdebstrap") is None:
            return None
        tag = f"localhost/base:{_DEBIAN}-{_PACKAGES.replace(',', '-')}"
        if self._do("images", "--quiet", "--filter", f"reference={tag}"):
            return tag
        container = self._do("from", "scratch")
        # After a crash the file system is not kept, so dpkg need not wait for the disk.
        _run(
            *("mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}"),
            *("--dpkgopt=force-unsafe-io", "--aptopt=Acquire::Languages none"),
            *(_DEBIAN, self._do("mount", container)),
        )
        self._do("commit", "--quiet", "--rm", container, tag)
        return tag

    def _do(self, *arguments: str) -> str:
        return _run(self._engine, *(self._store if self._engine == "buildah" else ()), *arguments)


def _backend(folder: Path) -> tuple[str, str | None]:
    """Return TORCH_BACKEND and, for `wheels`, their folder."""
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
    """Delete what a Builder has made in a folder; an engine keeps its layers for the next time."""
    if (containers := folder / "containers").exists():
        command = ["buildah", *_store(folder), "rm", *containers.read_text("utf-8").split()]
        subprocess.run(command, capture_output=True, check=False)
    for line in reversed(Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()):
        if (place := line.split()[1]).startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _store(folder: Path) -> tuple[str, ...]:
    return ("--root", str(_KEPT), "--runroot", str(folder / "run"))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout.strip()
