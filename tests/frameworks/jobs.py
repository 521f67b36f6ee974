"""The frameworks' scripts as jobs: of a stock image, with the launcher and the folder travelling along.

values = job_of("ddp")     # in the folder SCRIPTS
"""

import random
from typing import Any

from tests.conftest import ROOT

FRAMEWORKS = ("ddp", "accelerate", "transformers", "lightning", "deepspeed")
SCRIPTS = ROOT / "tests" / "frameworks" / "scripts"

ROWS = 256
STEPS = ROWS // (2 * 4)  # of an epoch, with two ranks and batches of four


def rows(bad: int | None = None) -> str:
    """Return what the scripts train on; `bad` is the number of a row that cannot be read."""
    numbers = random.Random(0)  # noqa: S311  # not a secret
    made = [" ".join(str(numbers.randrange(32)) for _ in range(8)) for _ in range(ROWS)]
    if bad is not None:
        made[bad] = made[bad][:-1] + "oops"
    return "\n".join(made)


def job_of(framework: str) -> dict[str, Any]:
    """Return the job file's values, for the scripts' folder: two nodes with a rank each."""
    return {
        "name": framework,
        "image": "registry.example/frameworks:1.0",
        "nodes": 2,
        "procsPerNode": 1,
        "run": {
            "script": f"train_{framework}.py",
            "args": ["--data", "rows.txt", "--folder", "/out/checkpoints"],
        },
        "code": {"path": "."},
        "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
    }
