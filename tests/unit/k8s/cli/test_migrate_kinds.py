"""render.py --migrate: typical manifests of a Job, a JobSet and a TrainJob."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli import command
from tests.rendering import only, pods, render

# In the shape of Kubernetes' own page on Indexed Jobs with pod-to-pod communication.
JOB = """
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None}
---
apiVersion: batch/v1
kind: Job
metadata: {name: mnist, labels: {kueue.x-k8s.io/queue-name: gpus, team: vision}}
spec:
  completions: 4
  parallelism: 4
  completionMode: Indexed
  backoffLimit: 2
  activeDeadlineSeconds: 3600
  template:
    spec:
      subdomain: headless
      restartPolicy: Never
      nodeSelector: {gpu: a100}
      containers:
      - name: worker
        image: docker.io/team/mnist:1
        command: [torchrun, --nnodes=4, --nproc_per_node=8, --rdzv_endpoint=mnist-0.headless:29500]
        args: [train.py, --epochs, "3"]
        resources: {limits: {nvidia.com/gpu: 8, memory: 64Gi}, requests: {cpu: 16}}
"""
# In the shape of JobSet's examples for PyTorch.
JOBSET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: resnet}
spec:
  failurePolicy: {maxRestarts: 5}
  replicatedJobs:
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 3
        completions: 3
        backoffLimit: 0
        template:
          spec:
            containers:
            - name: pytorch
              image: docker.io/team/resnet:2
              command: [bash, -xc, "torchrun --nnodes=6 resnet.py --backend=gloo"]
              env: [{name: LOGLEVEL, value: DEBUG}]
"""
# In the shape of Kubeflow Trainer's examples.
TRAINJOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: bert, namespace: team}
spec:
  runtimeRef: {name: torch-distributed}
  initializer: {dataset: {storageUri: "hf://imdb"}}
  trainer:
    image: docker.io/team/bert:3
    command: [python3, /workspace/train.py, --lr, "1e-3"]
    numNodes: 3
    numProcPerNode: 2
    resourcesPerNode: {requests: {cpu: 4, nvidia.com/gpu: 2}}
    env: [{name: A, value: b}]
"""
KINDS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "job": (
        JOB,
        {
            "nodes": 4,
            "procsPerNode": 8,
            "run": {"script": "train.py", "args": ["--epochs", "3"]},
            "faults": {"maxRestarts": 2, "deadline": 3600},
            "labels": {"team": "vision"},
            "scheduling": {"queue": "gpus", "nodeSelector": {"gpu": "a100"}},
            "resources": {"gpu": 8, "cpu": "16", "memory": "64Gi"},
        },
        ["Service headless: not carried", "--nnodes --rdzv-endpoint of torchrun"],
    ),
    "jobset": (
        JOBSET,
        {
            "nodes": 6,
            "run": {"command": ["bash", "-xc", "torchrun --nnodes=6 resnet.py --backend=gloo"]},
            "faults": {"maxRestarts": 5},
            "env": [{"name": "LOGLEVEL", "value": "DEBUG"}],
        },
        [],
    ),
    "trainjob": (
        TRAINJOB,
        {
            "namespace": "team",
            "nodes": 3,
            "procsPerNode": 2,
            "run": {"script": "/workspace/train.py", "args": ["--lr", "1e-3"]},
            "resources": {"gpu": 2, "cpu": "4"},
            "env": [{"name": "A", "value": "b"}],
        },
        ["initializer: write", "runtimeRef torch-distributed: what it contains is not migrated"],
    ),
}


@pytest.mark.parametrize("launcher", KINDS)
def test_a_job_of_this_kind_becomes_a_job_file_that_renders(
    launcher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, wanted, notes = KINDS[launcher]
    source = tmp_path / "old.yaml"
    source.write_text(text, encoding="utf-8")
    assert command.main(["--migrate", str(source)]) == 0
    seen = capsys.readouterr()
    values = yaml.safe_load(seen.out)
    assert {key: values.get(key) for key in wanted} == wanted
    assert values["launcher"] == launcher
    for note in notes:
        assert note in seen.err
    assert "corrected by hand" not in seen.err
    rendered = render(values, launcher)
    image = yaml.safe_load_all(text)
    assert pods(rendered)[0]["spec"]["containers"][0]["image"] in str(list(image))


def change(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


WRONG = {
    "completions": (change(JOB, "completions: 4", "completions: 8"), "completions=8 and parallelism=4"),
    "no container": (change(JOBSET, "containers:", "others:"), "'containers' is missing"),
    "no group": (change(JOBSET, "replicatedJobs:", "jobs:"), "'replicatedJobs' is missing"),
    "args alone": (change(TRAINJOB, "command:", "args:"), "without command: the image's entry"),
    "two": (JOB + "---" + TRAINJOB, "has 2 of these objects"),
    "text": (change(TRAINJOB, "numNodes: 3", "numNodes: many"), "invalid literal for int"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_carried_is_one_line_and_64(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, says = WRONG[what]
    source = tmp_path / "old.yaml"
    source.write_text(text, encoding="utf-8")
    assert command.main(["--migrate", str(source)]) == 64
    seen = capsys.readouterr()
    assert seen.out == ""
    assert says in seen.err
    assert len(seen.err.splitlines()) == 1


def test_a_list_of_kubectl_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [list(yaml.safe_load_all(JOB)), [{"kind": "List", "items": [*yaml.safe_load_all(JOB)]}]]
    source = tmp_path / "old.yaml"
    seen = []
    for documents in both:
        source.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
        assert command.main(["--migrate", str(source)]) == 0
        seen.append(capsys.readouterr())
    assert seen[0] == seen[1]


def test_a_group_whose_pod_differs_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = yaml.safe_load(JOBSET)
    (workers,) = made["spec"]["replicatedJobs"]
    other = yaml.safe_load(JOBSET)["spec"]["replicatedJobs"][0]
    other |= {"name": "more", "replicas": 1}
    made["spec"]["replicatedJobs"] = [workers, other]
    source = tmp_path / "old.yaml"
    source.write_text(yaml.safe_dump(made), encoding="utf-8")
    assert command.main(["--migrate", str(source)]) == 0
    seen = capsys.readouterr()
    values = yaml.safe_load(seen.out)
    assert values["nodes"] == 9
    assert "differs" not in seen.err
    assert only(render(values, "jobset"), "JobSet")
    containers = other["template"]["spec"]["template"]["spec"]["containers"]
    containers[0]["image"] = "docker.io/team/another:1"
    source.write_text(yaml.safe_dump(made), encoding="utf-8")
    assert command.main(["--migrate", str(source)]) == 0
    assert "more: its pod differs from workers'" in capsys.readouterr().err
    containers[0]["command"] = ["sleep", "100"]
    source.write_text(yaml.safe_dump(made), encoding="utf-8")
    assert command.main(["--migrate", str(source)]) == 64
    assert "more runs a different program than workers" in capsys.readouterr().err
