"""`why NAME` of a job that is suspended."""

from typing import Any

import pytest

from tests.cluster_objects import JOBSET, Cluster, Run, jobset

VOLCANO = ("batch.volcano.sh/v1alpha1", "Job")


@pytest.mark.parametrize(
    ("kind", "spec", "status"),
    [
        (JOBSET, {"suspend": True}, {}),
        (("kubeflow.org/v1", "PyTorchJob"), {"runPolicy": {"suspend": True}}, {}),
        (VOLCANO, {}, {"state": {"phase": "Aborted"}}),
    ],
)
def test_a_suspended_job_says_how_to_resume_it(
    kind: tuple[str, str],
    spec: dict[str, Any],
    status: dict[str, Any],
    run: Run,
    cluster: Cluster,
) -> None:
    server, config = cluster
    server.put(*kind, jobset(spec, **status))
    out = run(config, "why", "digits")[1]
    assert "suspended (cancelled)" in out
    assert "do        python -m k8s resume digits" in out
