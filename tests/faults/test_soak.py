"""Half a minute of the soak; `make soak` runs it for any time."""

import sys

import pytest

from tests.conftest import run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_half_a_minute_of_random_faults_leaves_the_run_as_if_there_had_been_none() -> None:
    soak = [sys.executable, "-m", "tests.faults.soak", "--seconds", "30", "--seed", "1"]
    ended = run_command(soak)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-20000:]
    assert "used once in each of" in ended.stdout
    assert "time to recover: median" in ended.stdout
