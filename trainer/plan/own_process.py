"""Run a command of the trainer in a separate process, with given settings and a time limit.

The calling process needs no torch.

    done = run("trainer.check", "circles:Circles", settings=settings, seconds=60)
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.config.environment import PREFIX, environment_of
from trainer.config.exits import Exit, Fault
from trainer.config.settings import Settings

# The command is one process, even if this process is one of many ranks, and chooses its own mode.
_PREFIXES = (PREFIX, "MUSTER_", "TORCHELASTIC_")
_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def run(
    *module: str,
    settings: Settings,
    seconds: float,
    what: str,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run `python -m MODULE [ARGUMENT...]` and return its exit code and output.

    `environment` is added to this process's environment. Raises Fault when the command does not start,
    or does not end within `seconds`; `what` is its name in that message.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_PREFIXES) and name not in _NAMES
    }
    path = [str(Path(__file__).parents[2]), str(Path(folder or ".").absolute())]
    path += filter(None, [inherited.get("PYTHONPATH")])
    try:
        return subprocess.run(
            # -P, because a trainer.py of the user's in the folder would come before our package.
            [sys.executable, "-P", "-m", *module],
            env=inherited
            | {"PYTHONPATH": os.pathsep.join(path)}
            | dict(environment or {})
            | environment_of(settings),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Fault(Exit.CODE, f"{what} did not finish within {seconds:.0f} s") from None
    except OSError as error:
        raise Fault(Exit.MACHINE, f"{what} did not start: {error}") from None
