"""The suite for a cluster, with an API that only stores: all is collected, and its dry run is run."""

import subprocess
import sys

import pytest

from tests.cluster_objects import Cluster
from tests.conftest import run_command
from tests.rendering import CLUSTER


def suite(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *options]
    return run_command([*command, "tests/cluster"], env=environment)


@pytest.mark.slow
def test_the_dry_run_of_the_suite(cluster: Cluster) -> None:
    server, config = cluster
    del server.groups["trainer.kubeflow.org/v1alpha1"]
    place = {"KUBECONFIG": str(config), "MUSTER_TEST_CLUSTER": "1"}
    ran = suite("-k", "every_golden", **place)
    assert ran.returncode == 0, ran.stdout
    assert (
        "no TrainJob (trainer.kubeflow.org/v1alpha1) here; install Kubeflow Trainer" in ran.stdout
    )
    tried = [path for method, path in server.requests if "dryRun=All" in path]
    for plural in ("jobs", "jobsets", "pytorchjobs", "networkpolicies", "persistentvolumeclaims"):
        assert any(f"/{plural}/" in path for path in tried)
    assert all("/namespaces/muster-test-" in path for path in tried)
    kept = {path.split("/")[-2] for path in server.objects}
    assert kept <= {"namespaces"}  # only its namespace was written, and it is deleted again
    assert not any("/muster-test-" in path for path in server.objects)


@pytest.mark.slow
def test_the_suite_is_skipped_without_a_cluster_and_knows_every_launcher() -> None:
    ran = suite(KUBECONFIG="", MUSTER_TEST_CLUSTER="1")
    assert ran.returncode == 0
    assert "no cluster: set KUBECONFIG" in ran.stdout
    ran = suite("--collect-only", "-k", "jobset")
    assert "test_a_killed_pod_is_replaced_and_the_job_goes_on[jobset]" in ran.stdout
    ran = suite("--collect-only")
    assert all(f"test_a_job_trains_to_its_accuracy[{name}]" in ran.stdout for name in CLUSTER)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_the_jobs_of_the_suite_are_rendered_for_every_launcher(launcher: str) -> None:
    from tests.cluster.running import endless, job
    from tests.rendering import pods, render

    for values in (job("digits", epochs=30), job("wrong", task="no_such_module:Task")):
        for pod in pods(render(values, launcher)):
            assert pod["spec"]["containers"][0]["resources"]["requests"]["memory"] == "2Gi"
    text = render(endless("killed", "a-claim"), launcher).text
    assert "claimName: a-claim" in text
    shown = render(endless("shown", "a-claim") | {"tensorboard": {}}, launcher).text
    assert "command:\n        - tensorboard" in shown
