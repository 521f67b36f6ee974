"""podPatch: the result of a strategic merge with the pod, on every launcher."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from k8s.jobfile import load
from tests.rendering import CLUSTER, EXAMPLE, job, planned, pods, render


def patched(launcher: str, spec: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    found = pods(render(job(**changes, podPatch={"spec": spec}), launcher))
    return [pod["spec"] for pod in found]


def plain(launcher: str, **changes: Any) -> dict[str, Any]:
    inside: dict[str, Any] = pods(render(job(**changes), launcher))[0]["spec"]
    return inside


# A patch, and how it changes a pod.
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"hostNetwork": True}, {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}),
    (
        {"hostNetwork": True, "dnsPolicy": "Default"},
        {"hostNetwork": True, "dnsPolicy": "Default"},
    ),
    ({"hostNetwork": True, "dnsPolicy": None}, {"hostNetwork": True}),
    ({"hostNetwork": False}, {"hostNetwork": False}),
    ({"enableServiceLinks": None}, {"enableServiceLinks": None}),
    ({"tolerations": [{"operator": "Exists"}]}, {"tolerations": [{"operator": "Exists"}]}),
    (
        {"securityContext": {"$patch": "replace", "runAsUser": 1}},
        {"securityContext": {"runAsUser": 1}},
    ),
]


@pytest.mark.parametrize("launcher", CLUSTER)
@pytest.mark.parametrize(("patch", "result"), CASES)
def test_fields_of_the_pod(launcher: str, patch: dict[str, Any], result: dict[str, Any]) -> None:
    before = plain(launcher)
    wanted = {key: value for key, value in (before | result).items() if value is not None}
    for after in patched(launcher, patch):
        assert after == wanted


@pytest.mark.parametrize("launcher", CLUSTER)
def test_a_mapping_is_merged_key_by_key(launcher: str) -> None:
    before = plain(launcher)
    for after in patched(launcher, {"securityContext": {"runAsUser": 1, "fsGroup": None}}):
        wanted = before["securityContext"] | {"runAsUser": 1}
        del wanted["fsGroup"]
        assert after == before | {"securityContext": wanted}


def test_null_in_a_job_file_takes_away_as_well(tmp_path: Path) -> None:
    """Elsewhere in a job file, null removes the key; here it removes the pod's field."""
    path = tmp_path / "job.yaml"
    path.write_text("{name: a, image: b, podPatch: {spec: {enableServiceLinks: null}}}")
    for values in (load.read([str(path)]), load.read([str(EXAMPLE)], [SET])):
        assert "enableServiceLinks" not in pods(render(values.values, "job"))[0]["spec"]


SET = "podPatch.spec.enableServiceLinks="


@pytest.mark.parametrize("launcher", CLUSTER)
def test_the_container_is_found_by_one_name_on_every_launcher(launcher: str) -> None:
    before = plain(launcher, env=[{"name": "A", "value": "1"}])
    patch = {
        "name": "trainer",
        "resources": {"limits": {"cpu": "2"}},
        "env": [
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "B", "value": "2"},
        ],
    }
    sidecar = {"name": "side", "image": "x"}
    values = {"env": [{"name": "A", "value": "1"}]}
    for after in patched(launcher, {"containers": [patch, sidecar]}, **values):
        first, second = after["containers"]
        assert second == sidecar
        wanted = deepcopy(before["containers"][0])
        wanted["resources"]["limits"]["cpu"] = "2"
        wanted["env"] = [one for one in wanted["env"] if one["name"] != "A"]
        assert {key: value for key, value in first.items() if key != "env"} == {
            key: value for key, value in wanted.items() if key != "env"
        }
        assert [one for one in first["env"] if one["name"] not in "AB"] == wanted["env"]
        assert [one for one in first["env"] if one["name"] in "AB"] == patch["env"]


@pytest.mark.parametrize("launcher", CLUSTER)
def test_a_volume_is_replaced_since_it_has_one_source(launcher: str) -> None:
    before = plain(launcher)
    claim = {"name": "out", "persistentVolumeClaim": {"claimName": "c"}}
    for after in patched(launcher, {"volumes": [claim]}):
        assert after["volumes"] == [
            claim if one["name"] == "out" else one for one in before["volumes"]
        ]


@pytest.mark.parametrize("launcher", CLUSTER)
def test_an_item_is_taken_away_by_its_name(launcher: str) -> None:
    mount = {"mountPath": "/tmp", "$patch": "delete"}
    spec = {
        "containers": [{"name": "trainer", "volumeMounts": [mount]}],
        "volumes": [{"name": "tmp", "$patch": "delete"}],
    }
    for after in patched(launcher, spec):
        assert "tmp" not in [one["name"] for one in after["volumes"]]
        assert "/tmp" not in [one["mountPath"] for one in after["containers"][0]["volumeMounts"]]


@pytest.mark.parametrize("launcher", CLUSTER)
def test_metadata_is_of_the_pods_alone(launcher: str) -> None:
    given = {"labels": {"a.io/b": "c"}, "annotations": {"a.io/d": "any text\n"}}
    rendered = render(job(podPatch={"metadata": given}), launcher)
    for pod in pods(rendered):
        assert given["labels"].items() <= pod["metadata"]["labels"].items()
        assert given["annotations"].items() <= pod["metadata"]["annotations"].items()
    assert all("a.io/b" not in one["metadata"]["labels"] for one in rendered.objects)


def test_a_label_may_be_called_as_a_list_is() -> None:
    label, plugin = (
        {"env": "prod"},
        {"name": "a", "csi": {"driver": "d", "volumeAttributes": {"env": "b"}}},
    )
    spec = {"nodeSelector": label, "volumes": [plugin]}
    values = job(podPatch={"metadata": {"labels": label}, "spec": spec})
    (pod,) = pods(render(values, "job"))
    assert pod["metadata"]["labels"]["env"] == "prod"
    assert pod["spec"]["nodeSelector"] == label
    assert plugin in pod["spec"]["volumes"]


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"hostNetwork": True}, "podPatch.spec.hostNetwork"),
        (
            {"securityContext": {"runAsNonRoot": False}},
            "podPatch.spec.securityContext.runAsNonRoot",
        ),
        (
            {"containers": [{"name": "trainer", "securityContext": {"privileged": True}}]},
            "podPatch.spec.containers[trainer].securityContext.privileged",
        ),
    ],
)
def test_what_weakens_the_pods_security_is_said(spec: dict[str, Any], key: str) -> None:
    said = f"{key}: Pod Security restricted forbids it"
    assert said in planned(job(podPatch={"spec": spec})).warnings
    assert "restricted forbids" not in str(planned(job()).warnings)
    harmless = {"hostNetwork": False, "securityContext": {"runAsNonRoot": True}}
    assert "restricted forbids" not in str(planned(job(podPatch={"spec": harmless})).warnings)


@pytest.mark.parametrize("token", [True, False])
def test_that_the_pods_get_a_token_is_said(*, token: bool) -> None:
    warnings = planned(job(podPatch={"spec": {"automountServiceAccountToken": token}})).warnings
    assert ("automountServiceAccountToken: the pods get a token" in str(warnings)) == token


@pytest.mark.parametrize("hosts", [True, False])
def test_that_policies_do_not_cover_the_machines_network_is_said(*, hosts: bool) -> None:
    warnings = planned(job(podPatch={"spec": {"hostNetwork": hosts}})).warnings
    assert ("NetworkPolicies do not cover it" in str(warnings)) == hosts
