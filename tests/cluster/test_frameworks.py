"""Scripts of five frameworks in pods of an image with nothing of ours.

make frameworks && make test-standin PICK=job
FRAMEWORKS_IMAGE=registry.example/with-them:1 make test-cluster IMAGE=registry.example/muster:cpu
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.cluster.conftest import Verbs
from tests.cluster.running import job, submitted
from tests.frameworks.jobs import FRAMEWORKS, SCRIPTS, STEPS, job_of, rows
from tests.standin import image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_frameworks_script_trains_in_pods(
    verbs: Verbs, launcher: str, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes take every step of an epoch, and each rank one place."""
    name = os.environ.get("FRAMEWORKS_IMAGE", "frameworks")
    if name == "frameworks" and not (verbs.standin and (image.FRAMEWORKS / ".stamp").exists()):
        pytest.skip("no FRAMEWORKS_IMAGE; on the stand-in: make frameworks")
    for script in (SCRIPTS / f"train_{framework}.py", SCRIPTS / "rows.py"):
        shutil.copy(script, tmp_path)
    (tmp_path / "rows.txt").write_text(rows(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    plain = job(framework)
    del plain["trainer"]
    with submitted(verbs, launcher, plain | job_of(framework) | {"image": name}) as submitted_name:
        verbs.does("wait", submitted_name, "--timeout", "300", timeout=360)
        assert verbs.status(submitted_name)["phase"] == "succeeded"
        logs = verbs.does("logs", submitted_name)
    steps = [int(step) for step in re.findall(r"step (\d+) loss \S+", logs)]
    assert steps == [*range(1, STEPS + 1)]
