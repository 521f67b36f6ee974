"""Read from cgroup v2 or v1 how much memory is free and how many processes were OOM-killed.

before = oom_kills(); ...; explain_sigkill(before)
"""

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")

# For v2 and v1: limit, usage, and the field of memory.stat that counts reclaimable page cache.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_memory(root: Path = _ROOT, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes that this container may still take: the machine's, or its cgroup's if fewer."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    for folder in _folders(root):
        for limit_name, usage_name, cache_name in _FILES:
            try:
                limit = (folder / limit_name).read_text(encoding="ascii").strip()
                usage = int((folder / usage_name).read_text(encoding="ascii"))
                stat = _numbers(folder / "memory.stat")
            except (OSError, ValueError):
                continue
            if limit.isdecimal():
                free = min(free, int(limit) - usage + stat.get(cache_name, 0))
    return free


def oom_kills(root: Path = _ROOT) -> int | None:
    """Return how many processes of this container the kernel has OOM-killed; None if unknown."""
    for folder in _folders(root):
        for name in ("memory.events", "memory.oom_control"):
            try:
                return _numbers(folder / name)["oom_kill"]
            except (OSError, KeyError, ValueError):
                continue
    return None


def explain_sigkill(before: int | None) -> str:
    """Return the probable reason of a SIGKILL; `before` is `oom_kills()` at the process's start."""
    now = oom_kills()
    if before is None or now is None:
        return "; if nobody killed it, it was an OOM kill: see the kernel's log (dmesg)"
    if now == before:
        return "; not an OOM kill (cgroup memory.events)"
    return (
        "; it was an OOM kill (cgroup memory.events): raise resources.memory, or lower "
        "TRAINER_MICRO_BATCH or TRAINER_WORKERS"
    )


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders that may hold the numbers: this process's cgroup, or the container's root."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield root / "memory" / path.strip("/")
        elif controllers == "":
            yield root / path.strip("/")
    yield root / "memory"
    yield root


def _numbers(file: Path) -> dict[str, int]:
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {name: int(value) for name, value in lines}
