"""Renderings obey the schemas of the CRDs, with unknown fields refused, and those of Kubernetes."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from k8s.jobfile import pod_patch
from tests.rendering import CLUSTER, ROOT, everything, job, pods, render

# Where a kind's schema is; of Volcano's Job there is an excerpt below.
FILES = {
    "PyTorchJob": "pytorchjobs.yaml",
    "JobSet": "jobsets.yaml",
    "TrainJob": "trainjobs.yaml",
    "TrainingRuntime": "trainingruntimes.yaml",
}


def crd_folder() -> Path | None:
    places = [os.environ.get("MUSTER_CRDS", ""), str(ROOT.parent / "shared" / "crds")]
    return next((Path(place) for place in places if place and Path(place).is_dir()), None)


def strict(schema: Any) -> Any:
    """Return an OpenAPI schema that refuses unknown fields, which an API server drops."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {key: strict(value) for key, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


@cache
def validator(kind: str) -> Draft202012Validator:
    folder = crd_folder()
    assert folder
    crd = yaml.load((folder / FILES[kind]).read_bytes(), yaml.CSafeLoader)
    schema = strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # the API server's own, not the CRD's
    return Draft202012Validator(schema)


@pytest.mark.skipif(crd_folder() is None, reason="no folder of CRDs: set MUSTER_CRDS")
@pytest.mark.parametrize("launcher", ["pytorchjob", "jobset", "trainjob"])
@pytest.mark.parametrize("much", [False, True])
def test_the_crds_accept_what_is_rendered(launcher: str, much: bool) -> None:  # noqa: FBT001
    rendered = render(everything(launcher) if much else job(), launcher)
    known = [one for one in rendered.objects if one["kind"] in FILES]
    assert known[-1] == rendered.objects[-1]
    for one in known:
        assert [e.message for e in validator(one["kind"]).iter_errors(one)] == []
    for pod in pods(rendered):
        pod["spec"]["container"] = []
        assert any(list(validator(one["kind"]).iter_errors(one)) for one in known)
        del pod["spec"]["container"]


@pytest.mark.skipif(crd_folder() is None, reason="no folder of CRDs: set MUSTER_CRDS")
def test_a_patch_knows_every_field_of_a_pod() -> None:
    """JobSet's CRD has the pod of the Kubernetes that it was made for, which is a new one."""
    schema = validator("JobSet").schema
    for key in ("spec", "replicatedJobs", "template", "spec", "template", "spec"):
        schema = schema.get("items", schema)["properties"][key]
    pod = schema["properties"]
    left_out = {"ephemeralContainers", "serviceAccount"}  # set in running pods; deprecated
    assert pod.keys() - left_out - {*pod_patch.POD} == set()
    assert pod["containers"]["items"]["properties"].keys() - {*pod_patch.CONTAINER} == set()


# The fields of a Volcano Job that are used here: pkg/apis/batch/v1alpha1/job.go of volcano-sh/apis, and
# bus/v1alpha1/actions.go there.
_POLICY = {
    "properties": {
        "action": {"enum": ["AbortJob", "RestartJob", "RestartTask", "RestartPod", "TerminateJob"]},
        "events": {"items": {"enum": ["PodFailed", "PodEvicted", "Unknown", "TaskCompleted"]}},
        "exitCode": {"type": "integer", "not": {"const": 0}},
    },
    "additionalProperties": False,
    # Its webhook allows one of the two.
    "oneOf": [{"required": ["events", "action"]}, {"required": ["exitCode", "action"]}],
}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
VOLCANO = {
    "properties": {
        "schedulerName": {"type": "string"},
        "minAvailable": _COUNT,
        "minSuccess": {**_COUNT, "minimum": 1},
        "maxRetry": _COUNT,
        "queue": {"type": "string"},
        "priorityClassName": {"type": "string"},
        "plugins": {"additionalProperties": {"items": {"type": "string"}}},
        "policies": {"items": _POLICY},
        "ttlSecondsAfterFinished": _COUNT,
        "tasks": {
            "items": {
                "properties": {
                    "name": {"type": "string"},
                    "replicas": _COUNT,
                    "minAvailable": _COUNT,
                    "template": {"type": "object"},
                },
                "additionalProperties": False,
            }
        },
    },
    "additionalProperties": False,
}


def test_a_volcano_job_holds_what_its_api_has() -> None:
    for values in (job(), everything("volcano"), job(faults={"maxRestarts": 2**31 - 1})):
        made = render(values, "volcano").objects[-1]
        assert (made["apiVersion"], made["kind"]) == ("batch.volcano.sh/v1alpha1", "Job")
        check = Draft202012Validator(VOLCANO)
        assert [error.message for error in check.iter_errors(made["spec"])] == []
        assert list(check.iter_errors({**made["spec"], "activeDeadlineSeconds": 1}))


@pytest.mark.parametrize("launcher", CLUSTER)
@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version()])
def test_kubernetes_own_schema_accepts_every_pod(launcher: str, version: str) -> None:
    """Some CRDs have only an outline of the pod, so the pod is checked as a Pod."""
    for values in (job(), everything(launcher)):
        for template in pods(render(values, launcher)):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}} | {
                "spec": template["spec"]
            }
            kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version()])
def test_kubernetes_own_schema_accepts_the_job_in_a_jobset(version: str) -> None:
    made = render(everything("jobset"), "jobset").objects[-1]
    inner = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": inner}
    kubernetes_validate.validate(whole, version, strict=True)
