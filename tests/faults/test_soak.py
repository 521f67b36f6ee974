"""A minute of the soak; `make soak` runs it for any time."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT, clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_minute_of_random_faults_leaves_the_run_as_if_there_had_been_none() -> None:
    command = (sys.executable, "-m", "tests.faults.soak", "--seconds", "60", "--seed", "1")
    ended = subprocess.run(
        command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-20000:]
    assert "used once in each of" in ended.stdout
    assert "time to recover: median" in ended.stdout
