"""Manifests and scripts: goldens, values that stay unchanged, strict models of peers."""

import json
import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from k8s.cli.schema import json_schema
from k8s.jobfile import load
from tests import goldens
from tests.rendering import (
    AWKWARD,
    CLUSTER,
    EVERYTHING,
    GOLDEN,
    LAUNCHERS,
    ROOT,
    environment_in_pod,
    environment_in_script,
    everything,
    job,
    only,
    pods,
    render,
    run_script,
)


def test_goldens(tmp_path: Path) -> None:
    """tests/golden/README.md says how to write them again."""
    goldens.write_jobs(tmp_path)
    for name in goldens.JOBS:
        written = {file.name: file.read_text() for file in (tmp_path / name).iterdir()}
        assert written == {file.name: file.read_text() for file in (GOLDEN / name).iterdir()}


def test_the_job_of_goldens_says_everything() -> None:
    """A key that is added later must be in it too."""

    def keys(schema: dict[str, Any], at: str = "") -> set[str]:
        found = set()
        for key, value in schema.get("properties", {}).items():
            refs = [value, *value.get("anyOf", []), *value.get("oneOf", []), value.get("items", {})]
            names = [one["$ref"].rsplit("/", 1)[1] for one in refs if "$ref" in one]
            below = [keys(whole["$defs"][name], f"{at}{key}.") for name in names]
            found |= set().union(*below) if below else {f"{at}{key}"}
        return found

    whole = json_schema()
    # A volume has one source; the trainer's own settings are tested with the trainer.
    elsewhere = {f"data.{key}" for key in ("pvc", "hostPath")}
    elsewhere |= {f"checkpoints.{key}" for key in ("pvc", "hostPath", "emptyDir")}
    elsewhere |= {key for key in keys(whole) if re.match(r"(data|checkpoints)\.csi\.", key)}
    elsewhere |= {"volumes.hostPath", "scheduling.topology.preferred"}
    # Its code is from git; a folder on a claim is in features/code-claim.md.
    elsewhere |= {"code.via", "code.pvc"}
    # The user's own program replaces the trainer's settings; its renderings are in own-script/.
    elsewhere |= {key for key in keys(whole) if key.partition(".")[0] == "run"}
    # A matrix is several jobs.
    elsewhere |= {key for key in keys(whole) if key.partition(".")[0] == "matrix"}
    # A job of fixed size; TensorBoard would keep an AppWrapper from ending; a queue starts the job.
    elsewhere |= {"nodes.min", "nodes.max", "appWrapper", "faults.suspend"}
    paths = _paths(yaml.safe_load(EVERYTHING.read_text()))
    said = {path[: found.start()] for path in paths for found in re.finditer(r"\.|$", path)}
    assert keys(whole) - elsewhere - {"trainer"} <= said


def _paths(value: Any, at: str = "") -> set[str]:
    if isinstance(value, dict):
        return set().union(
            *(_paths(item, f"{at}.{key}" if at else key) for key, item in value.items())
        )
    if isinstance(value, list):
        return set().union(*(_paths(item, at) for item in value))
    return {at}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_values_come_through_unchanged(launcher: str, tmp_path: Path) -> None:
    wanted = {f"V{number}": text for number, text in enumerate(AWKWARD)}
    values = job(env=[{"name": name, "value": text} for name, text in wanted.items()])
    if launcher in CLUSTER:
        for pod in pods(render(values, launcher)):
            seen = environment_in_pod(pod)
            assert {name: seen[name] for name in wanted} == wanted
    else:
        seen = environment_in_script(values, launcher, tmp_path)
        assert {name: seen[name] for name in wanted} == wanted


@pytest.mark.parametrize("launcher", CLUSTER)
def test_annotations_come_through_unchanged(launcher: str) -> None:
    wanted = {f"a.io/v{number}": text for number, text in enumerate(AWKWARD)}
    rendered = render(job(annotations=wanted), launcher)
    for one in rendered.objects:
        assert one["metadata"]["annotations"] == wanted
    assert tuple(yaml.safe_load_all(rendered.text)) == rendered.objects


@pytest.mark.parametrize(
    "text", ["y", "N", "on", "1e-05", "0o17", "1_000", "~", "12:30", "0x1F", "=", ".5"]
)
def test_words_that_other_parsers_read_as_something_else_are_quoted(text: str) -> None:
    """kubectl's parser reads y as a boolean and 1e-05 as a number; PyYAML reads both as text."""
    written = render(job(env=[{"name": "A", "value": text}]), "job").text
    assert re.search(rf"name: A\n +value: {re.escape(json.dumps(text))}\n", written)


@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if name != "compose"])
def test_2_and_512_nodes_differ_only_in_numbers(launcher: str) -> None:
    def rendered(nodes: int) -> str:
        return render(job(nodes=nodes, trainer={"globalBatch": 1024}), launcher).text

    small, large = rendered(2), rendered(512)
    assert small != large
    assert re.sub("[0-9]+", "#", small) == re.sub("[0-9]+", "#", large)
    assert len(large) - len(small) < 20


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_second_rendering_is_identical(launcher: str) -> None:
    values = everything(launcher)
    assert render(values, launcher).text == render(values, launcher).text


@pytest.mark.parametrize(
    "values", [job(), job(nodes=3, trainer={"globalBatch": 6}), everything("job")]
)
@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version()])
def test_kubernetes_own_schema_accepts_job_and_service(
    values: dict[str, Any], version: str
) -> None:
    objects = render(values, "job").objects
    own = [
        one for one in objects if one["kind"] not in ("PodGroup", "PodMonitor", "PrometheusRule")
    ]
    assert [one["kind"] for one in own][-2:] == ["Service", "Job"]
    for one in own:
        kubernetes_validate.validate(one, version, strict=True)


def test_kubernetes_own_schema_would_refuse_an_unknown_field() -> None:
    one = render(job(), "job").objects[1]
    one["spec"]["template"]["spec"]["containers"][0]["envs"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, "1.31", strict=True)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_the_pod_passes_pod_security_restricted(launcher: str) -> None:
    values = everything(launcher)
    del values["resources"]["rdma"]
    rendered = render(values, launcher)
    board = only(rendered, "Deployment")["spec"]["template"]
    for pod in [*pods(rendered), board]:
        inside = pod["spec"]
        assert inside["securityContext"]["runAsNonRoot"] is True
        assert inside["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert inside["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(inside)
        for container in [*inside["containers"], *inside.get("initContainers", [])]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
        allowed = {"emptyDir", "persistentVolumeClaim", "configMap", "secret", "csi", "ephemeral"}
        allowed |= {"downwardAPI", "projected"}
        assert all(allowed & set(one) for one in inside["volumes"])


@pytest.mark.parametrize("launcher", CLUSTER)
@pytest.mark.parametrize("key", ["labels", "annotations"])
def test_no_sidecar_is_injected(launcher: str, key: str) -> None:
    for pod in pods(render(job(), launcher)):
        assert pod["metadata"][key]["sidecar.istio.io/inject"] == "false"


@pytest.mark.parametrize("launcher", CLUSTER)
def test_every_mount_has_its_volume(launcher: str) -> None:
    """Also if other parts are switched off: mlbatch loses a volume without shared memory."""
    alone = job(resources={"gpu": 1}, nccl={"topology": {"configMap": "a"}})
    for values in (job(), alone, everything(launcher)):
        for pod in pods(render(values, launcher)):
            inside = pod["spec"]
            containers = [*inside["containers"], *inside.get("initContainers", [])]
            mounts = {m["name"] for one in containers for m in one["volumeMounts"]}
            names = [one["name"] for one in inside["volumes"]]
            assert mounts == set(names)
            assert len(names) == len(mounts)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_a_namespace_is_never_guessed(launcher: str) -> None:
    assert all("namespace" not in one["metadata"] for one in render(job(), launcher).objects)
    named = render(job(namespace="team"), launcher).objects
    assert {one["metadata"]["namespace"] for one in named} == {"team"}


def test_quantities_stay_as_written() -> None:
    values = job(resources={"gpu": 2, "cpu": 0.5, "memory": "1.5Gi"}, procsPerNode=1)
    resources = pods(render(values, "job"))[0]["spec"]["containers"][0]["resources"]
    assert resources == {
        "requests": {"cpu": "0.5", "memory": "1.5Gi", "nvidia.com/gpu": "2"},
        "limits": {"memory": "1.5Gi", "nvidia.com/gpu": "2"},
    }


def test_local_starts_all_ranks_under_one_agent(tmp_path: Path) -> None:
    text = render(job(nodes=2, procsPerNode=3, trainer={"globalBatch": 6}), "local").text
    code, seen, errors = run_script(text, tmp_path, PET_NODE_RANK="1", PET_MASTER_ADDR="far")
    assert code == 0, errors
    assert seen["arguments"] == ["-m", "trainer.launch"]
    contract = {k: v for k, v in seen["environment"].items() if k.startswith("PET_")}
    assert contract == {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "6", "PET_SHUTDOWN_TIMEOUT": "110"}
    assert seen["environment"]["TRAINER_GLOBAL_BATCH"] == "6"
    assert seen["environment"]["TRAINER_OUT"] == "build/a-job/run"


def test_local_leaves_paths_to_the_caller(tmp_path: Path) -> None:
    values = job(data={"hostPath": "/mnt"}, trainer={"lr": 0.5})
    given = {"TRAINER_OUT": "my out", "TRAINER_DATA": "/my data", "TRAINER_LR": "9"}
    seen = run_script(render(values, "local").text, tmp_path, **given)[1]["environment"]
    assert (seen["TRAINER_OUT"], seen["TRAINER_DATA"]) == ("my out", "/my data")
    assert seen["TRAINER_LR"] == "0.5"
    seen = run_script(render(values, "local").text, tmp_path)[1]["environment"]
    assert seen["TRAINER_DATA"] == "/mnt"


@pytest.mark.parametrize("launcher", ["local", "docker"])
def test_data_of_a_cluster_is_asked_for(launcher: str, tmp_path: Path) -> None:
    text = render(job(data={"pvc": "d"}), launcher).text
    code, seen, errors = run_script(text, tmp_path)
    assert (code, seen) == (64, None)
    assert "set TRAINER_DATA to the folder that holds the data" in errors
    assert run_script(text, tmp_path, TRAINER_DATA=str(tmp_path))[0] == 0


def test_docker(tmp_path: Path) -> None:
    values = job(
        nodes=2,
        resources={"gpu": 2, "shm": "1Gi"},
        data={"hostPath": "/mnt/my data"},
        trainer={"data": "/data/set"},
        faults={"gracePeriod": 60},
    )
    code, seen, errors = run_script(render(values, "docker").text, tmp_path)
    assert code == 0, errors
    arguments = seen["arguments"]
    assert arguments[:2] == ["run", "--rm"]
    assert arguments[-1] == "muster:cpu"
    pairs = list(pairwise(arguments))
    out = tmp_path.resolve() / "build" / "a-job" / "docker"
    assert out.is_dir()
    for pair in [
        ("--gpus", "all"),
        ("--shm-size", str(2 * 2**30)),
        ("--ulimit", "memlock=-1"),
        ("--stop-timeout", "60"),
        ("--user", f"{os.getuid()}:{os.getgid()}"),
        ("--mount", f"type=bind,source={out},target=/out/a-job"),
        ("--mount", "type=bind,source=/mnt/my data/set,target=/data/set,readonly"),
        ("--env", "PET_NPROC_PER_NODE=4"),
        ("--env", "PET_NNODES=1"),
        ("--env", "PET_SHUTDOWN_TIMEOUT=50"),
        ("--env", "TRAINER_DATA=/data/set"),
        ("--env", "TRAINER_OUT=/out/a-job"),
    ]:
        assert pair in pairs
    assert "--read-only" in arguments
    assert "--tty" not in arguments


def test_docker_asks_for_no_gpu_unless_the_job_does(tmp_path: Path) -> None:
    """It also asks for no unlimited locked memory, which a rootless engine cannot give."""
    arguments = run_script(render(job(), "docker").text, tmp_path)[1]["arguments"]
    assert not {"--gpus", "memlock=-1"} & set(arguments)


@pytest.mark.parametrize("launcher", ["local", "docker"])
def test_a_script_ends_with_the_code_of_what_it_ran(launcher: str, tmp_path: Path) -> None:
    tool = tmp_path / "docker"
    tool.write_text("#!/bin/sh\nexit 72\n")
    tool.chmod(0o755)
    script = tmp_path / "script.sh"
    script.write_text(render(job(), launcher).text)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(tool)}
    done = subprocess.run(["/bin/sh", str(script)], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 72


@pytest.mark.parametrize(
    "path", sorted((ROOT / "k8s" / "jobs").glob("*.yaml")), ids=lambda p: p.stem
)
def test_ready_job_files_render_and_fit_the_schema(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)  # of code.path
    values = load.read([str(path)]).values
    for launcher in LAUNCHERS:
        assert render(everything(launcher, path), launcher).text
    validator = Draft202012Validator(json_schema())
    assert [error.message for error in validator.iter_errors(values)] == []
    assert list(validator.iter_errors({**values, "colour": "red"}))
    assert list(validator.iter_errors({**values, "trainer": {"golbalBatch": 1}}))
