"""What the kernel says of this container's memory, by cgroup v2 or v1: what is left, who was killed.

before = kills(); ...; words_for_a_kill(before)
"""

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")

# Of v2 and v1: limit, usage, and the line of memory.stat that counts what can be given back.
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


def kills(root: Path = _ROOT) -> int | None:
    """Return how many processes of this container the kernel has killed for want of memory."""
    for folder in _folders(root):
        for name in ("memory.events", "memory.oom_control"):
            try:
                return _numbers(folder / name)["oom_kill"]
            except (OSError, KeyError, ValueError):
                continue
    return None


def words_for_a_kill(before: int | None) -> str:
    """Return what to say of a process that got SIGKILL, when `kills()` was `before` at its start."""
    now = kills()
    if before is None or now is None:
        return "; if nobody killed it, the kernel did for want of memory: its log tells (dmesg)"
    if now == before:
        return "; not for want of memory, says the kernel"
    return (
        "; the kernel killed it for want of memory: raise resources.memory, or lower "
        "TRAINER_MICRO_BATCH or TRAINER_WORKERS"
    )


def _folders(root: Path) -> Iterator[Path]:
    """Yield where this process's numbers may stand: its own cgroup, or what a container sees of it."""
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
