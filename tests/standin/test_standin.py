"""The cluster suite on the stand-in: that it works, with one launcher; `make test-standin` has all.

A pod killed mid-run goes through most of it: verbs, controller, kubelet, names, volumes and logs.
"""

import subprocess
import sys

import pytest

from tests.conftest import ROOT, clean_environment
from tests.faults.hosts import why_not

PICKED = "[job] and (killed or configuration)"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(why_not() is not None, reason=f"pods need hosts: {why_not()}")
def test_the_cluster_suite_passes_on_the_stand_in() -> None:
    suite = ["pytest", "-p", "no:cacheprovider", "tests/cluster/test_jobs.py", "-k", PICKED]
    told = subprocess.run(
        [sys.executable, "-m", "tests.standin", sys.executable, "-m", *suite],
        cwd=ROOT,
        env=clean_environment(MUSTER_TEST_CLUSTER="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "2 passed" in told.stdout
