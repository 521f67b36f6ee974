"""The goldens: the pages of features are as they would be written now, and strict models accept them."""

import importlib
import json
import re
from functools import cache
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
    """Only its own: Kubernetes' schema, above, has checked the pods."""
    made = [(where, one) for where, one in rendered() if one["kind"] == "PyTorchJob"]
    assert len(made) > 20
    for where, one in made:
        has_fields(one, "KubeflowOrgV1PyTorchJob", where)
    wrong = made[0][1] | {"spec": made[0][1]["spec"] | {"runPolicy": {"backofLimit": 1}}}
    with pytest.raises(AssertionError, match="backofLimit"):
        has_fields(wrong, "KubeflowOrgV1PyTorchJob", "")


def has_fields(part: Any, kind: str, at: str) -> None:
    """Check that a model of kubeflow-training has the fields that are given."""
    inner = re.fullmatch(r"(dict\(str, |list\[)(\w+)[)\]]", kind)
    model = getattr(importlib.import_module("kubeflow.training.models"), kind, None)
    if inner:
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            has_fields(value, inner[2], f"{at}.{key}")
    elif model and kind.startswith("KubeflowOrg"):
        names = {alias: name for name, alias in model.attribute_map.items()}
        for key, value in part.items():
            assert key in names, f"{at}.{key}: no such field"
            has_fields(value, model.openapi_types[names[key]], f"{at}.{key}")


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
