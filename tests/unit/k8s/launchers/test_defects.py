"""Bugs of other kits, each with the test that would catch it here.

What was seen where is in the table; the threads are of the projects named.
"""

import re
import subprocess
from typing import Any

import pytest
import yaml

from k8s.cli.schema import json_schema
from k8s.jobfile import validate
from k8s.plan import make
from k8s.plan.model import Payload
from tests.controllers import UID, given
from tests.rendering import (
    AWKWARD,
    CLUSTER,
    GOLDEN,
    environment_in_pod,
    everything,
    expand,
    job,
    only,
    planned,
    pods,
    render,
)
from trainer.config import contract
from trainer.config.exits import Fault

ELASTIC: dict[str, Any] = {"nodes": {"min": 1, "max": 2}, "trainer": {"globalBatch": 8}}


def main_containers(launcher: str, **changes: Any) -> list[dict[str, Any]]:
    return [pod["spec"]["containers"][0] for pod in pods(render(job(**changes), launcher))]


# --- mlbatch's pytorchjob-generator


@pytest.mark.parametrize("launcher", ["job", "jobset", "volcano"])
def test_mlbatch_rendezvous_id_is_the_constant_101(launcher: str) -> None:
    seen = contract.resolve(given(launcher, job(**ELASTIC), 0), devices=lambda: 0)
    assert UID in seen.rendezvous_id
    assert not re.search(r"rdzv.*\b101\b", render(job(**ELASTIC), launcher).text)


@pytest.mark.parametrize("launcher", CLUSTER)
@pytest.mark.parametrize("procs", [1, 4])
def test_mlbatch_nnodes_from_world_size(launcher: str, procs: int) -> None:
    """The operator's WORLD_SIZE is nodes x ranks since 1.7 (kubeflow/trainer 1790)."""
    text = render(job(nodes=2, procsPerNode=procs, trainer={"globalBatch": 8}), launcher).text
    assert "WORLD_SIZE" not in text
    for own in main_containers(launcher, nodes=2, procsPerNode=procs, trainer={"globalBatch": 8}):
        literal = {one["name"]: one.get("value") for one in own["env"]}
        assert literal.get("PET_NNODES", "2") == "2"


def test_mlbatch_a_failed_setup_command_still_trains() -> None:
    (pod,) = pods(render(job(setup=["false", "echo trained"]), "job"))
    shell, option, script = pod["spec"]["initContainers"][0]["command"]
    script = expand(script, {}).replace("cd /code\n", "")
    done = subprocess.run([shell, option, script], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    # And the trainer's container starts only after steps that succeeded: that is what they are.
    assert "setup" not in str(pod["spec"]["containers"][0].get("command"))


@pytest.mark.parametrize("launcher", CLUSTER)
def test_mlbatch_a_topology_file_without_its_volume(launcher: str) -> None:
    """In mlbatch the volume is lost when shared memory is switched off."""
    values = {"resources": {"gpu": 1}, "nccl": {"topology": {"configMap": "a", "key": "b.xml"}}}
    mount = {"$patch": "delete", "mountPath": "/dev/shm"}
    patch = {
        "containers": [{"name": "trainer", "volumeMounts": [mount]}],
        "volumes": [{"name": "shm", "$patch": "delete"}],
    }
    for pod in pods(render(job(**values, podPatch={"spec": patch}), launcher)):
        (container,) = pod["spec"]["containers"]
        path = environment_in_pod(pod)["NCCL_TOPO_FILE"]
        mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        names = [one["name"] for one in pod["spec"]["volumes"]]
        assert mounted[path.rpartition("/")[0]] in names
        assert "shm" not in names


def test_mlbatch_the_documented_name_is_another_than_the_real_one() -> None:
    """mlbatch documents MOUNT_PATH_NVME for NVME_MOUNT_PATH. Here the page of each key is tested."""
    scratch = {"name": "scratch", "path": "/nvme", "ephemeral": {"size": "1Ti"}}
    (container,) = main_containers("job", volumes=[scratch])
    assert {"name": "scratch", "mountPath": "/nvme"} in container["volumeMounts"]
    keys = set(json_schema()["$defs"]["Scratch"]["properties"])
    assert keys == {"size", "storageClass"}


@pytest.mark.parametrize("cpu", [0, "0", "0.0001", -1])
def test_mlbatch_a_floor_that_is_misspelt_in_the_schema(cpu: Any) -> None:
    """mlbatch writes `mimimum`, so no minimum applies."""
    with pytest.raises(Fault, match="resources.cpu=.* must be at least 1m"):
        planned(job(resources={"cpu": cpu}))

    def keywords(schema: Any) -> set[str]:
        if isinstance(schema, list):
            return set().union(*map(keywords, schema))
        if not isinstance(schema, dict):
            return set()
        below = [value for key, value in schema.items() if key not in ("default", "enum")]
        return {key for key in schema if key.startswith(("min", "max"))}.union(
            *map(keywords, below)
        )

    known = {"minimum", "maximum", "minLength", "maxLength", "min", "max", "maxRestarts"}
    known |= {"minItems", "maxItems", "minProperties", "maxParallel"}
    assert keywords(json_schema()) - {"microBatch"} <= known


@pytest.mark.parametrize("launcher", CLUSTER)
@pytest.mark.parametrize("gpu", [0, 8])
def test_mlbatch_a_process_per_core_of_the_host_on_a_cpu(launcher: str, gpu: int) -> None:
    """Without a number the operator's `auto` counts them (kubeflow/trainer 2407)."""
    rendered = render(job(resources={"gpu": gpu}, trainer={"globalBatch": 8}), launcher)
    number = str(gpu or 1)
    if launcher == "pytorchjob":
        assert only(rendered, "PyTorchJob")["spec"]["nprocPerNode"] == number
    elif launcher == "trainjob":
        assert only(rendered, "TrainJob")["spec"]["trainer"]["numProcPerNode"] == int(number)
    else:
        for pod in pods(rendered):
            assert environment_in_pod(pod)["PET_NPROC_PER_NODE"] == number
    assert not re.search(r"(?i)proc\w*:? *\"?auto", rendered.text)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_mlbatch_a_scheduler_only_under_a_name_that_is_not_declared(launcher: str) -> None:
    for pod in pods(render(job(scheduling={"schedulerName": "mine"}), launcher)):
        assert pod["spec"]["schedulerName"] == "mine"
    assert "schedulerName" in json_schema()["$defs"]["Scheduling"]["properties"]


@pytest.mark.parametrize("launcher", CLUSTER)
@pytest.mark.parametrize("shm", [None, "1Gi"])
def test_mlbatch_shared_memory_without_a_limit(launcher: str, shm: str | None) -> None:
    resources = {"memory": "8Gi"} | ({"shm": shm} if shm else {})
    for pod in pods(render(job(resources=resources), launcher)):
        (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "shm")
        assert volume["emptyDir"]["sizeLimit"] == (shm or "2Gi")


def test_mlbatch_a_snapshot_of_less_than_its_name_says() -> None:
    """mlbatch's test of the metadata only compares `spec`. Here goldens have whole objects."""
    for path in (GOLDEN / "plain").glob("*.yaml"):
        for one in yaml.safe_load_all(path.read_text()) if path.stem in CLUSTER else ():
            assert {"apiVersion", "kind", "metadata", "spec"} == set(one)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_mlbatch_nvidia_and_one_storage_class_alone(launcher: str) -> None:
    scratch = {"name": "a", "path": "/a", "ephemeral": {"size": "1Ti", "storageClass": "mine"}}
    asked = {"gpu": 2, "gpuResource": "amd.com/gpu"}
    for pod in pods(render(job(resources=asked, volumes=[scratch]), launcher)):
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "2"}
        (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "a")
        claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
        assert claim["storageClassName"] == "mine"


# --- NeMo-Run's KubeflowExecutor


def test_nemo_run_emits_pod_template_overrides() -> None:
    """The field was removed in Trainer 2.2 (kueue 14886). Here nothing of the TrainJob is overridden."""
    for one in render(job(scheduling={"nodeSelector": {"a": "b"}}), "trainjob").objects:
        assert "podTemplateOverrides" not in str(one)
        assert "podSpecOverrides" not in str(one)


def test_nemo_run_a_worker_with_no_replicas() -> None:
    """Denied by webhooks (kubeflow/pytorch-operator 287)."""
    spec = only(render(job(nodes=1), "pytorchjob"), "PyTorchJob")["spec"]
    assert set(spec["pytorchReplicaSpecs"]) == {"Master"}


@pytest.mark.parametrize("key", ["image", "nodes", "resources", "trainer", "scheduling", "labels"])
def test_nemo_run_validates_the_kind_of_job_alone(key: str) -> None:
    with pytest.raises(Fault, match=f"^{key}"):
        make.make(validate.validate(job(**{key: object()})), None, Payload())  # type: ignore[arg-type]


# --- SageMaker HyperPod's hyp


@pytest.mark.parametrize("launcher", CLUSTER)
@pytest.mark.parametrize("text", AWKWARD)
def test_hyp_values_of_variables_are_not_quoted(launcher: str, text: str) -> None:
    rendered = render(job(env=[{"name": "A", "value": text}]), launcher)
    assert tuple(yaml.safe_load_all(rendered.text)) == rendered.objects
    for pod in pods(rendered):
        assert environment_in_pod(pod)["A"] == text


@pytest.mark.parametrize("launcher", CLUSTER)
def test_hyp_has_no_shared_memory_no_secrets_no_init_containers(launcher: str) -> None:
    key = {"secretKeyRef": {"name": "a", "key": "b"}}
    values = job(setup=["true"], env=[{"name": "A", "valueFrom": key}])
    for pod in pods(render(values, launcher)):
        (container,) = pod["spec"]["containers"]
        assert {"name": "A", "valueFrom": key} in container["env"]
        assert "/dev/shm" in [one["mountPath"] for one in container["volumeMounts"]]
        assert [one["name"] for one in pod["spec"]["initContainers"]] == ["setup"]


# --- xpk's golden, arena


@pytest.mark.parametrize("launcher", CLUSTER)
def test_xpk_pull_secrets_of_the_name_none_privileged_host_network(launcher: str) -> None:
    for pod in pods(render(job(), launcher)):
        assert "imagePullSecrets" not in pod["spec"]
        assert "hostNetwork" not in pod["spec"]
        assert "privileged" not in str(pod)


def test_arena_clean_pod_policy_outside_of_the_run_policy() -> None:
    values = job(faults={"cleanPodPolicy": "All"})
    spec = only(render(values, "pytorchjob"), "PyTorchJob")["spec"]
    assert spec["runPolicy"]["cleanPodPolicy"] == "All"
    assert "cleanPodPolicy" not in spec


@pytest.mark.parametrize("launcher", CLUSTER)
def test_aws_template_token_in_plain_text(launcher: str) -> None:
    token = "hf_" + "a" * 30
    with pytest.raises(Fault, match="looks like a credential") as refusal:
        render(job(env=[{"name": "HF_TOKEN", "value": token}]), launcher)
    assert token not in str(refusal.value)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_aws_template_shared_memory_of_the_machine(launcher: str) -> None:
    for pod in pods(render(job(), launcher)):
        assert not any("hostPath" in one for one in pod["spec"]["volumes"])


@pytest.mark.parametrize("launcher", CLUSTER)
def test_skypilot_grants_rights_in_the_namespace(launcher: str) -> None:
    kinds = {one["kind"] for one in render(everything(launcher), launcher).objects}
    assert not {"Role", "RoleBinding", "ClusterRole", "ServiceAccount"} & kinds


# --- threads


@pytest.mark.parametrize("launcher", ["jobset", "trainjob"])
def test_a_ttl_in_a_trainjobs_runtime_makes_its_jobset_for_ever(launcher: str) -> None:
    """kubeflow/trainer 2991."""
    values = job(faults={"ttl": 60})
    if launcher == "jobset":
        assert only(render(values, launcher), "JobSet")["spec"]["ttlSecondsAfterFinished"] == 60
        return
    with pytest.raises(Fault, match="faults.ttl=60: not on launcher trainjob"):
        render(values, launcher)
