"""Find a folder's git commit, and whether its files have changed since.

commit_of(Path("."), new_files=True)    # "3f2c...", "3f2c...-dirty", or None without a commit
"""

import os
import subprocess
from pathlib import Path

DIRTY = "-dirty"
_TIMEOUT = 2.0  # seconds; after that the commit is unknown


def code_here() -> dict[str, str | None]:
    """Return which code a run has: that of its job, or else what git says about the current folder."""
    commit = os.environ.get("MUSTER_CODE_COMMIT") or commit_of(Path.cwd(), new_files=False)
    return {"code_sha256": os.environ.get("MUSTER_CODE_SHA256"), "code_commit": commit}


def commit_of(folder: Path, *, new_files: bool, without: Path | None = None) -> str | None:
    """Return the commit, with -dirty if files have changed, or with `new_files` if some are new.

    Files below `without`, a folder in `folder`, do not matter.
    """
    # Within a git hook there are variables that name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # git only reads here
    status = (
        "status",
        "--porcelain",
        f"--untracked-files={'normal' if new_files else 'no'}",
        "--",
        ".",
        *([f":(exclude,literal){without.relative_to(folder)}"] if without else []),
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
