"""The cluster suite works on the stand-in, with one launcher; `make test-standin` tests all.

A pod that is killed mid-run tests most parts: verbs, controller, kubelet, names, volumes and logs.
Changed code tests commands in pods.
"""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.conftest import ROOT, clean_environment, run_command
from tests.faults.hosts import why_not

# A JobSet has two controllers, and no wait of 10 s before a failed pod is replaced.
FILES = ("tests/cluster/test_jobs.py", "tests/cluster/test_in_pods.py")
PICKED = "[jobset] and (killed or configuration) or changed_code"


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_not() is not None, reason=f"pods need hosts: {why_not()}"),
]
ENDLESS = """
import sys, time
from k8s.cluster.client import objects
from k8s.cluster.client.connect import connect

container = {"name": "it", "image": "it", "command": ["sleep", sys.argv[1]]}
metadata = {"name": "endless", "namespace": "default"}
pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
objects.apply(connect(context=None, namespace="default", timeout=30), pod)
time.sleep(600)
"""


def test_the_cluster_suite_passes_on_the_stand_in() -> None:
    suite = ["pytest", "-p", "no:cacheprovider", *FILES, "-k", PICKED]
    ran = run_command(
        [sys.executable, "-m", "tests.standin", sys.executable, "-m", *suite],
        env={"MUSTER_TEST_CLUSTER": "1"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


def test_sigterm_leaves_no_process_and_no_host() -> None:
    seconds = str(10**6 + os.getpid())  # identifies its processes

    def running() -> list[str]:
        """Return the names of its processes; one that has just ended has no command line."""
        found = [one.info for one in psutil.process_iter(["cmdline", "name"])]
        return [one["name"] for one in found if seconds in (one["cmdline"] or [])]

    as_make_does = ["sh", "-c", '"$0" "$@"; exit', sys.executable, "-c", ENDLESS, seconds]
    command = [sys.executable, "-m", "tests.standin", *as_make_does]
    with subprocess.Popen(command, cwd=ROOT, env=clean_environment()) as standin:
        end = time.monotonic() + 120
        while "sleep" not in running():
            assert standin.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
        standin.send_signal(signal.SIGTERM)
        assert standin.wait(timeout=60) == 143
    assert running() == []
    hosts = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert f"muster-{standin.pid}-" not in hosts
