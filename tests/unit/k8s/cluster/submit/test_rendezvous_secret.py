"""The Secret that `submit` makes for the rendezvous: when, for whom, and never shown."""

import base64
import re
from pathlib import Path

import pytest

from tests.cluster_objects import Cluster, Run, refuse, submit
from tests.standin.objects import Object

PATH = "/api/v1/namespaces/lab/secrets/digits-rendezvous"
LAUNCHERS = ("job", "jobset", "pytorchjob", "trainjob", "volcano")


def value(secret: Object) -> str:
    return base64.b64decode(secret["data"]["secret"]).decode()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_of_several_nodes_gets_one_that_nobody_sees(
    run: Run, cluster: Cluster, tmp_path: Path, launcher: str
) -> None:
    server = cluster[0]
    seen = submit(run, cluster, tmp_path, launcher, name="digits", nodes=2)
    secret = server.objects[PATH]
    assert re.fullmatch("[0-9a-f]{64}", value(secret))
    assert (secret["type"], secret["immutable"]) == ("Opaque", True)
    assert secret["metadata"]["labels"]["app.kubernetes.io/instance"] == "digits"
    (owner,) = secret["metadata"]["ownerReferences"]
    assert owner["name"] == "digits"
    assert value(secret) not in seen
    assert secret["data"]["secret"] not in seen


def test_one_node_gets_none(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    submit(run, cluster, tmp_path, "job", name="digits", nodes=1)
    assert PATH not in cluster[0].objects


def test_a_running_job_keeps_its_own_and_the_next_gets_another(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    server = cluster[0]
    submit(run, cluster, tmp_path, "job", name="digits", nodes=2)
    first = value(server.objects[PATH])
    submit(run, cluster, tmp_path, "job", name="digits", nodes=2)
    assert value(server.objects[PATH]) == first
    assert run(cluster[1], "delete", "digits")[0] == 0
    submit(run, cluster, tmp_path, "job", name="digits", nodes=2)
    assert value(server.objects[PATH]) != first


def test_without_the_right_to_make_one_the_job_is_submitted_with_a_warning(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    server = cluster[0]
    refusal = 'secrets is forbidden: User "jane" cannot delete resource "secrets"'
    refuse(server, 403, refusal, at="/secrets/")
    seen = submit(run, cluster, tmp_path, "job", name="digits", nodes=2)
    assert seen.count("so only the NetworkPolicy protects") == 1
    assert PATH not in server.objects
    assert "/apis/batch/v1/namespaces/lab/jobs/digits" in server.objects
