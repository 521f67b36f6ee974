"""`why NAME` and `logs NAME` of a job that is suspended or has no pods."""

from typing import Any

import pytest

from tests.cluster_objects import FAILED, JOBSET, Cluster, Run, jobset

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


def test_a_failed_job_whose_pods_are_gone(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    server.put(*JOBSET, jobset(**FAILED))
    out = run(config, "why", "digits")[1]
    assert out.splitlines()[-1].startswith("unread    its logs: its pods are gone")
    code, out, err = run(config, "logs", "digits")
    assert (code, out) == (65, "")
    assert "its pods are gone, with their logs" in err
    server.put(*JOBSET, jobset({"suspend": True}))
    assert run(config, "logs", "digits")[0] == 0
