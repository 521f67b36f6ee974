"""Which commit of git a folder is at, and whether its files have changed since.

commit_of(Path("."), new_files=True)    # "3f2c...", "3f2c...-dirty", or None where git knows none
"""

import os
import subprocess
from pathlib import Path

DIRTY = "-dirty"
_TIMEOUT = 2.0  # seconds; then it is not known


def code_here() -> dict[str, str | None]:
    """Return which code a run has: what its job carried, else what git says of the current folder."""
    commit = os.environ.get("MUSTER_CODE_COMMIT") or commit_of(Path.cwd(), new_files=False)
    return {"code_sha256": os.environ.get("MUSTER_CODE_SHA256"), "code_commit": commit}


def commit_of(folder: Path, *, new_files: bool) -> str | None:
    """Return the commit, with -dirty if files of the folder have changed, or are new (`new_files`)."""
    # A hook of git's sets variables that name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # it only reads
    status = (
        "status",
        "--porcelain",
        f"--untracked-files={'normal' if new_files else 'no'}",
        "--",
        ".",
    )
    found = []
    for arguments in (("rev-parse", "--verify", "HEAD"), status):
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=folder,
                env=environment,
                capture_output=True,
                timeout=_TIMEOUT,
                check=True,
            )
        except (subprocess.SubprocessError, OSError):
            return None
        found.append(done.stdout.decode(errors="replace").strip())
    commit, changed = found
    return commit + DIRTY * bool(changed)
