"""The goldens: the pages of features are as they would be written now, and strict models accept them."""

import importlib
import json
from functools import cache
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from tests import goldens
from tests.rendering import GOLDEN, pods
from tests.unit.k8s.launchers.test_crds import FILES, VOLCANO, crd_folder, validator

# Kinds of Kubernetes itself.
CORE = ("v1", "batch/v1", "apps/v1", "networking.k8s.io/v1", "policy/v1")


@pytest.mark.parametrize("name", [*goldens.names_of_features(), "README"])
def test_a_page_is_what_would_be_written(name: str) -> None:
    """tests/golden/README.md says how to write them again."""
    text = goldens.index() if name == "README" else goldens.document(name)
    assert (goldens.FEATURES / f"{name}.md").read_text(encoding="utf-8") == text


@cache
def rendered() -> list[tuple[str, dict[str, Any]]]:
    """Return every object of every golden of a cluster launcher, and every pod, once."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}

    def add(name: str, one: dict[str, Any]) -> None:
        found.setdefault(json.dumps(one, sort_keys=True), (name, one))

    for where, _, made in goldens.of_clusters():
        for one in made.objects:
            add(where, one)
            for inner in one["spec"].get("components", []) if "spec" in one else []:
                add(where, inner["template"])
        for template in pods(made):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
            add(where, pod | {"spec": template["spec"]})
    assert len(found) > 170
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version()])
def test_kubernetes_own_schema_accepts_every_object(version: str) -> None:
    for where, one in rendered():
        if one["apiVersion"] in CORE:
            try:
                kubernetes_validate.validate(one, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise AssertionError(f"{where}: {error}") from None


@pytest.mark.slow
def test_volcanos_api_has_every_field() -> None:
    made = [one for where, one in rendered() if one["apiVersion"].startswith("batch.volcano.sh")]
    assert len(made) > 20
    for one in made:
        assert [
            error.message for error in Draft202012Validator(VOLCANO).iter_errors(one["spec"])
        ] == []


@pytest.mark.slow
@pytest.mark.skipif(crd_folder() is None, reason="no folder of CRDs: set MUSTER_CRDS")
def test_the_crds_accept_every_object() -> None:
    seen = set()
    for where, one in rendered():
        if one["kind"] in FILES:
            errors = [error.message for error in validator(one["kind"]).iter_errors(one)]
            assert errors == [], where
            seen.add(one["kind"])
    assert seen == set(FILES)


def same(model: Any, given: Any, at: str) -> None:
    """Check that a model has read all fields: it ignores those that it does not know."""
    if isinstance(given, dict) and isinstance(model, dict):
        assert model.keys() == given.keys(), at
        for key, value in given.items():
            same(model[key], value, f"{at}.{key}")
    elif isinstance(given, dict):
        fields = type(model).model_fields
        by_alias = {field.alias or name: name for name, field in fields.items()}
        for key, value in given.items():
            assert key in by_alias, f"{at}.{key}: no such field"
            same(getattr(model, by_alias[key]), value, f"{at}.{key}")
    elif isinstance(given, list):
        assert len(model) == len(given), at
        for index, value in enumerate(given):
            same(model[index], value, f"{at}[{index}]")
    else:
        # Quantities and dates have special types there.
        plain = getattr(model, "actual_instance", model)
        assert str(getattr(plain, "root", plain)) == str(given), at


@pytest.mark.slow
def test_the_models_of_kubeflow_training_accept_every_pytorchjob() -> None:
    """They drop unknown fields, so the result must equal the input."""
    training = importlib.import_module("kubeflow.training")
    client = importlib.import_module("kubernetes.client")
    made = [(where, one) for where, one in rendered() if one["kind"] == "PyTorchJob"]
    assert len(made) > 20
    for where, one in made:
        back(one, "KubeflowOrgV1PyTorchJob", training.ApiClient(), where)
        for replica in one["spec"]["pytorchReplicaSpecs"].values():
            back(replica["template"], "V1PodTemplateSpec", client.ApiClient(), where)
    made[0][1]["spec"]["runPolicy"]["backofLimit"] = 1
    with pytest.raises(AssertionError):
        back(made[0][1], "KubeflowOrgV1PyTorchJob", training.ApiClient(), "")
    del made[0][1]["spec"]["runPolicy"]["backofLimit"]


def back(part: Any, kind: str, owner: Any, where: str) -> None:
    response = SimpleNamespace(data=json.dumps(part))
    read = owner.sanitize_for_serialization(owner.deserialize(response, kind))
    assert without_none(read) == part, where


def without_none(value: Any) -> Any:
    """Return the fields that a model has read, without those that were not given."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


MODELS = {
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "JobSet": "JobsetV1alpha2JobSet",
}


@pytest.mark.slow
def test_the_models_of_kubeflow_trainer_accept_every_object() -> None:
    models = importlib.import_module("kubeflow_trainer_api.models")
    seen = set()
    for where, one in rendered():
        name = MODELS.get(one["kind"])
        if name is None:
            continue
        if one["kind"] == "JobSet":
            spec = models.JobsetV1alpha2JobSetSpec.from_dict(one["spec"])
            same(spec, one["spec"], where)
        else:
            same(getattr(models, name).from_dict(one), one, where)
        seen.add(one["kind"])
    assert seen == set(MODELS)
    broken = yaml.safe_load((GOLDEN / "plain" / "jobset.yaml").read_text().split("---\n")[1])
    broken["spec"]["failurePolicy"]["maxRestart"] = 1
    with pytest.raises(AssertionError, match="maxRestart: no such field"):
        same(models.JobsetV1alpha2JobSetSpec.from_dict(broken["spec"]), broken["spec"], "")
