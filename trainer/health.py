"""The liveness check: the launcher and every rank renew a file, and this command checks the files' age.

A rank renews its file at every step and every evaluated batch, in the folder TRAINER_HEALTH. This
module imports neither torch nor pydantic, because a kubelet runs it every minute.

    python -m trainer.health    # 0: all fresh, or TRAINER_HEALTH is not set; 1: a line with the oldest
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from trainer.config.exits import Exit, Fault

LAUNCHER = "launcher"

Renew = Callable[[], None]

_WRITE_INTERVAL = 1.0  # seconds
_FILE_SIZE = 100  # bytes


def rank(local_rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{local_rank}"


def sign(folder: Path | None, name: str, *, limit: float) -> Renew:
    """Create the liveness file `name` and return the function that renews it.

    The file is too old after `limit` seconds; 0: never. Without a folder nothing is written. Raises
    Fault(71).
    """
    if folder is None:
        return lambda: None
    path, signs, written = folder / name, 0, float("-inf")

    def write(now: float) -> None:
        # In place, which works on a full disk. All processes have the same monotonic clock.
        text = json.dumps({"time": now, "signs": signs, "limit": limit}).ljust(_FILE_SIZE)
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, text.encode(), 0)
        finally:
            os.close(file)

    def renew() -> None:
        nonlocal signs, written
        signs += 1
        now = time.monotonic()
        if now - written >= _WRITE_INTERVAL:
            written = now
            with contextlib.suppress(OSError):
                write(now)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(time.monotonic())
    except OSError as error:
        raise Fault(
            Exit.MACHINE,
            f"{path}: {error.strerror}; set TRAINER_HEALTH to a folder that can be written",
        ) from error
    return renew


def forget(folder: Path | None) -> None:
    """Remove the files of an earlier launch, which may have had another monotonic clock."""
    for path in folder.glob("*") if folder else ():
        if path.name == LAUNCHER or path.name.startswith("rank-"):
            with contextlib.suppress(OSError):  # `sign` says what is wrong with the folder
                path.unlink()


def judge(folder: Path) -> str | None:
    """Return the problem with the liveness files in `folder`, or None."""
    names = [LAUNCHER, *(path.name for path in sorted(folder.glob("rank-*")))]
    signs = {name: _read(folder / name) for name in names if (folder / name).is_file()}
    if not signs:
        return f"no liveness file in {folder}"
    now = time.monotonic()
    old = {
        name: now - sign["time"]
        for name, sign in signs.items()
        if sign["limit"] and now - sign["time"] > sign["limit"]
    }
    if not old:
        return None
    name = max(old, key=lambda name: old[name])
    return (
        f"{name.replace('-', ' ')}: no step, evaluated batch or checkpoint for {old[name]:.0f} s "
        f"(limit {signs[name]['limit']:.0f} s, TRAINER_HEALTH_TIMEOUT); {signs[name]['signs']} before"
    )


def _read(path: Path) -> dict[str, float]:
    for _ in range(3):
        with contextlib.suppress(ValueError):  # being written
            found: dict[str, float] = json.loads(path.read_bytes())
            return found
        time.sleep(0.01)
    return {"time": float("-inf"), "signs": 0, "limit": 1}


def main() -> int:
    """Check this node's processes; return 0, or 1 with a line on standard output."""
    if len(sys.argv) > 1:
        if sys.argv[1] in ("-h", "--help"):
            print(__doc__)
            return Exit.DONE
        text = f"takes no arguments, got {sys.argv[1]}; see python -m trainer.health --help"
        print(f"health: {text} (exit {Exit.CONFIG:d})", file=sys.stderr)
        return Exit.CONFIG
    folder = os.environ.get("TRAINER_HEALTH")
    problem = judge(Path(folder)) if folder else None
    if problem:
        print(f"health: {problem}")  # a kubelet shows both streams; so does docker inspect
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
