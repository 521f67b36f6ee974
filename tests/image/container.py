"""Runs a container as an engine would, with only namespaces, mounts and chroot. Needs root.

It has its own process 1, user, root, /tmp, /dev/shm and mounts, no capabilities, and cannot gain any.
It shares the network of its caller.

    python -m tests.image.container SPEC.json     # a Container as JSON; ends as its process 1 does
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Container:
    """A container to run: `root` is the image's file system, which is not changed."""

    root: str
    command: list[str]
    environment: dict[str, str]
    user: str = "65532:65532"
    workdir: str = "/workspace"
    read_only: bool = False
    tmpfs: list[str] = field(default_factory=list)
    shm_bytes: int = 64 << 20
    mounts: list[tuple[str, str, bool]] = field(default_factory=list)  # source, target, read-only
    hostname: str = "container"
    hosts: dict[str, str] = field(default_factory=dict)  # name to address

    def start(self, file: Path, *prefix: str) -> list[str]:
        """Write the container to `file` and return the command that runs it, as one process."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
        module = ("-m", "tests.image.container", str(file))
        apart = ("unshare", "--mount", "--propagation", "private", "--uts")
        return [*prefix, *apart, sys.executable, *module]


def _run(one: Container, place: Path) -> None:
    """Become the parent of process 1, in this process's own mount namespace.

    The container's root is mounted at `place`.
    """
    subprocess.run(["hostname", one.hostname], check=True)
    _mount("tmpfs", _made(place), "-t", "tmpfs")
    upper, work, merged = (place / name for name in ("upper", "work", "merged"))
    for folder in (upper, work, merged):
        folder.mkdir()
    layers = f"lowerdir={one.root},upperdir={upper},workdir={work}"
    _mount("overlay", merged, "-t", "overlay", "-o", layers)
    _devices(merged / "dev", one.shm_bytes)
    hosts = {"localhost": "127.0.0.1", **one.hosts}
    (merged / "etc/hosts").write_text("".join(f"{a} {name}\n" for name, a in hosts.items()))
    (merged / "proc").mkdir(exist_ok=True)
    _bind("/sys", _made(merged / "sys"), read_only=True)
    for path in one.tmpfs:
        _mount("tmpfs", _made(merged / path.lstrip("/")), "-t", "tmpfs", "-o", "mode=1777")
    for source, target, read_only in one.mounts:
        place = merged / target.lstrip("/")
        _bind(source, place if place.is_file() else _made(place), read_only=read_only)
    if one.read_only:
        _mount(merged, merged, "--bind", "-o", "remount,ro,bind", bind_first=True)
    user, _, group = one.user.partition(":")
    variables = [f"{name}={value}" for name, value in one.environment.items()]
    command = [
        *("unshare", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc=/proc"),
        *(f"--root={merged}", f"--wd={one.workdir}"),
        *("setpriv", f"--reuid={user}", f"--regid={group or user}", "--clear-groups"),
        *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"),
        *("env", "-i", *variables, *one.command),
    ]
    os.execvp(command[0], command)  # noqa: S606


def _devices(folder: Path, shm_bytes: int) -> None:
    """Make the devices that every container has in /dev."""
    _mount("tmpfs", _made(folder), "-t", "tmpfs", "-o", "mode=755")
    for name in ("null", "zero", "full", "random", "urandom"):
        (folder / name).touch()
        _bind(f"/dev/{name}", folder / name)
    (folder / "fd").symlink_to("/proc/self/fd")
    shm = _made(folder / "shm")
    _mount("tmpfs", shm, "-t", "tmpfs", "-o", f"mode=1777,size={shm_bytes}")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _bind(source: str | Path, target: Path, *, read_only: bool = False) -> None:
    _mount(source, target, "--bind")
    if read_only:
        _mount(source, target, "--bind", "-o", "remount,ro,bind")


def _mount(source: str | Path, target: str | Path, *options: str, bind_first: bool = False) -> None:
    if bind_first:
        _mount(source, target, "--rbind")
    subprocess.run(["mount", *options, str(source), str(target)], check=True)


if __name__ == "__main__":
    spec = Path(sys.argv[1]).absolute()
    _run(Container(**json.loads(spec.read_text(encoding="utf-8"))), spec.with_suffix(".root"))
