"""render.py --migrate: makes a job file from a PyTorchJob's manifest."""

import contextlib
import io
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s import launchers
from k8s.cli import command, migrate
from tests.rendering import GOLDEN, everything, job, only, pods, render
from trainer.config.exits import Fault

PYTORCHJOB = launchers.find("pytorchjob")

# A typical manifest, with what mlbatch, arena and AWS's examples have in common.
MANIFEST = yaml.safe_load("""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: bert
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: gpus, team: nlp, app.kubernetes.io/name: bert}
spec:
  nprocPerNode: "8"
  runPolicy:
    cleanPodPolicy: None
    backoffLimit: 2
    ttlSecondsAfterFinished: 600
    activeDeadlineSeconds: 7200
    schedulingPolicy: {minAvailable: 4}
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: OnFailure
      template:
        metadata: {annotations: {sidecar.istio.io/inject: "false", a.io/b: c}}
        spec:
          serviceAccountName: trainer
          nodeSelector: {gpu: h100}
          tolerations: [{key: nvidia.com/gpu, operator: Exists}]
          imagePullSecrets: [{name: registry}]
          containers:
          - name: pytorch
            image: docker.io/team/bert:1.2
            command: [torchrun, --nnodes=4, train.py]
            env:
            - {name: NCCL_DEBUG, value: INFO}
            - {name: EMPTY}
            - {name: HF_TOKEN, value: hf_abcdefghijklmnopqrstuvwxyz}
            - {name: WORLD_SIZE, value: "4"}
            - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
            resources:
              limits: {nvidia.com/gpu: 8, memory: 512Gi, vpc.amazonaws.com/efa: 32, a.io/fpga: 1}
              requests: {cpu: 90}
            volumeMounts:
            - {name: shm, mountPath: /dev/shm}
            - {name: fsx, mountPath: /fsx, readOnly: true}
            - {name: fsx, mountPath: /models, subPath: models}
            - {name: cfg, mountPath: /cfg}
            - {name: ckpt, mountPath: /out}
          volumes:
          - {name: shm, emptyDir: {medium: Memory, sizeLimit: 64Gi}}
          - {name: fsx, persistentVolumeClaim: {claimName: fsx}}
          - {name: ckpt, persistentVolumeClaim: {claimName: ckpt}}
          - {name: cfg, configMap: {name: cfg, items: [{key: a, path: b}]}}
    Worker:
      <<: *replica
      replicas: 3
""")


def test_every_field_has_its_key() -> None:
    values, notes = migrate.migrate(PYTORCHJOB, deepcopy(MANIFEST))
    assert values["nodes"] == 4
    assert (values["name"], values["namespace"], values["procsPerNode"]) == ("bert", "team", 8)
    assert values["labels"] == {"team": "nlp"}
    assert values["scheduling"] == {
        "queue": "gpus",
        "gang": True,
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    assert values["faults"] == {
        "maxRestarts": 2,
        "deadline": 7200,
        "ttl": 600,
        "cleanPodPolicy": "None",
    }
    assert values["resources"] == {
        "gpu": 8,
        "cpu": "90",
        "memory": "512Gi",
        "rdma": {"vpc.amazonaws.com/efa": 32},
        "devices": {"a.io/fpga": 1},
        "shm": "64Gi",
    }
    assert values["checkpoints"] == {"pvc": "ckpt"}
    assert values["volumes"] == [{"name": "fsx", "path": "/fsx", "pvc": "fsx", "readOnly": True}]
    assert values["imagePullSecrets"] == ["registry"]
    assert {"name": "EMPTY", "value": ""} in values["env"]
    assert values["run"] == {"script": "train.py"}
    patch = values["podPatch"]
    assert patch["metadata"] == {"annotations": {"a.io/b": "c"}}
    assert values["serviceAccount"] == "trainer"
    assert "serviceAccountName" not in patch["spec"]
    for word in ("app.kubernetes.io/name", "HF_TOKEN", "WORLD_SIZE", "torchrun", "restartPolicy"):
        assert any(word in note for note in notes), word
    assert "hf_abc" not in str(values) + str(notes)


def test_the_job_file_renders_to_a_job_like_the_one_it_came_from() -> None:
    values, _ = migrate.migrate(PYTORCHJOB, deepcopy(MANIFEST))
    rendered = render(values, "pytorchjob")
    spec = only(rendered, "PyTorchJob")["spec"]
    assert spec["nprocPerNode"] == "8"
    assert {kind: one["replicas"] for kind, one in spec["pytorchReplicaSpecs"].items()} == {
        "Master": 1,
        "Worker": 3,
    }
    inside = pods(rendered)[0]["spec"]
    (container,) = inside["containers"]
    limits = container["resources"]["limits"]
    assert limits.items() >= {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32"}.items()
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert {"/fsx", "/cfg", "/dev/shm", "/out"} <= mounts.keys()
    assert mounts["/models"] == mounts["/fsx"]
    assert inside["serviceAccountName"] == "trainer"
    cfg = next(one for one in inside["volumes"] if one["name"] == mounts["/cfg"])
    assert cfg["configMap"]["items"] == [{"key": "a", "path": "b"}]


@pytest.mark.parametrize("name", ["digits-ddp", "plain"])
def test_what_was_rendered_here_comes_back(name: str) -> None:
    text = (GOLDEN / name / "pytorchjob.yaml").read_text()
    made = list(yaml.safe_load_all(text))[-1]
    values, notes = migrate.migrate(PYTORCHJOB, made)
    assert all("TRAINER_" in n or "MUSTER_" in n or "PET_" in n or "app.kub" in n for n in notes)
    assert values["trainer"]["task"] == "digits"
    again = only(render(values, "pytorchjob"), "PyTorchJob")
    for key in ("runPolicy", "nprocPerNode"):
        assert again["spec"][key] == made["spec"][key]
    containers = [
        one["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
        for one in (made, again)
    ]
    before, after = ({one["name"]: one for one in container["env"]} for container in containers)
    assert after == before


def test_everything_rendered_here_comes_back_as_far_as_it_can() -> None:
    made = only(render(everything("pytorchjob"), "pytorchjob"), "PyTorchJob")
    values, _ = migrate.migrate(PYTORCHJOB, deepcopy(made))
    again = only(render({**values, "trainer": {"globalBatch": 32}}, "pytorchjob"), "PyTorchJob")
    before, after = (
        one["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"] for one in (made, again)
    )
    for key in ("tolerations", "nodeSelector", "affinity", "priorityClassName", "schedulerName"):
        assert after[key] == before[key]
    assert after["containers"][0]["resources"] == before["containers"][0]["resources"]


def test_what_is_mounted_over_a_folder_of_the_pods_own_is_noted() -> None:
    made = deepcopy(MANIFEST)
    inside = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    places = {"/code": "pvc", "/tmp": "empty", "/data": "config", "/etc/muster": "pvc"}
    mounts = [{"name": name, "mountPath": path} for path, name in places.items()]
    inside["containers"][0]["volumeMounts"] = [
        *mounts,
        {"name": "pvc", "mountPath": "/out", "subPath": "a"},
    ]
    inside["volumes"] = [
        {"name": "pvc", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "empty", "emptyDir": {}},
    ]
    values, notes = migrate.migrate(PYTORCHJOB, made)
    assert not {"data", "checkpoints", "volumes"} & values.keys()
    shown = [
        note.split(":")[0] + note.split("own ")[1].split(";")[0]
        for note in notes
        if "its own" in note
    ]
    assert sorted(shown) == [
        "volume config/data",
        "volume pvc/code",
        "volume pvc/etc/muster",
        "volume pvc/out",
    ]


# As in the examples of the training operator, mlbatch and arena.
COMMANDS: list[tuple[list[str], list[str], dict[str, Any], str]] = [
    (["torchrun", "--nproc_per_node=4", "t.py", "--lr", "1"], [],
     {"run": {"script": "t.py", "args": ["--lr", "1"]}, "procsPerNode": 8}, ""),
    (["torchrun"], ["--nnodes", "2", "-m", "a.b"], {"run": {"module": "a.b"}}, "--nnodes of torchrun"),
    (["python3", "-u", "/opt/mnist.py"], ["--epochs", "1"],
     {"run": {"script": "/opt/mnist.py", "args": ["--epochs", "1"]}}, ""),
    (["python", "-m", "torch.distributed.run", "t.py"], [], {"run": {"script": "t.py"}}, ""),
    (["python", "-m", "pkg.train", "-x"], [], {"run": {"module": "pkg.train", "args": ["-x"]}}, ""),
    (["python", "-c", "print()"], [], {"run": {"command": ["python", "-c", "print()"]}}, ""),
    (["python", "-u", "-m", "torch.distributed.run", "t.py"], [], {"run": {"script": "t.py"}}, ""),
    (["bash", "-c"], ["cd /a && torchrun t.py"],
     {"run": {"command": ["bash", "-c", "cd /a && torchrun t.py"]}},
     "torchrun starts the ranks itself: set procsPerNode: 0"),
    (["sh", "-c", "python -m torch.distributed.run t.py"], [],
     {"run": {"command": ["sh", "-c", "python -m torch.distributed.run t.py"]}},
     "torch.distributed.run starts the ranks itself"),
    (["sh", "-c", "pip install accelerate deepspeed && python t.py"], [],
     {"run": {"command": ["sh", "-c", "pip install accelerate deepspeed && python t.py"]}}, ""),
    (["accelerate", "launch", "t.py"], [], {"run": {"command": ["accelerate", "launch", "t.py"]}},
     "run: accelerate starts the ranks itself: set procsPerNode: 0"),
    (["python", "t.py", "$(RANK)"], [], {"run": {"script": "t.py", "args": ["$(RANK)"]}},
     "$(NAME) is not replaced"),
    (["python", "-m", "trainer.launch"], [], {}, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "args", "wanted", "note"), COMMANDS, ids=[" ".join(a + b) for a, b, _, _ in COMMANDS]
)
def test_what_runs_is_carried(
    words: list[str], args: list[str], wanted: dict[str, Any], note: str
) -> None:
    made = deepcopy(MANIFEST)
    (container,) = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    container |= {"command": words, "args": args}
    values, notes = migrate.migrate(PYTORCHJOB, made)
    assert {key: values[key] for key in ("run", "procsPerNode") if key in values} == {
        "procsPerNode": 8,
        **wanted,
    }
    assert note in "".join(notes)
    assert "starts the ranks itself" in note or not any("starts the ranks" in one for one in notes)
    rendered = render(values, "pytorchjob")
    inside = pods(rendered)[0]["spec"]["containers"][0]
    assert ("command" in inside) == bool(wanted)


def test_a_rank_count_of_torchruns_is_taken_where_the_job_has_none() -> None:
    made = deepcopy(MANIFEST)
    del made["spec"]["nprocPerNode"]
    (container,) = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    container["command"] = ["torchrun", "--nproc-per-node", "4", "t.py"]
    assert migrate.migrate(PYTORCHJOB, made)[0]["procsPerNode"] == 4


def test_nodes_may_differ_in_what_the_launcher_sets() -> None:
    made = deepcopy(MANIFEST)
    replicas = made["spec"]["pytorchReplicaSpecs"]
    replicas["Worker"] = deepcopy(replicas["Worker"])
    for rank, role in enumerate(("Master", "Worker")):
        (container,) = replicas[role]["template"]["spec"]["containers"]
        container["command"] = ["python", "-m", "torch.distributed.launch", f"--node_rank={rank}"]
        container["args"] = ["t.py", "--lr", "1"]
    values, notes = migrate.migrate(PYTORCHJOB, made)
    assert values["run"] == {"script": "t.py", "args": ["--lr", "1"]}
    assert "--node-rank of torchrun: left out; the launcher does this" in notes
    assert not any("differs" in note for note in notes)
    container["args"][2] = "2"
    with pytest.raises(Fault, match="Worker runs a different program than Master"):
        migrate.migrate(PYTORCHJOB, made)


def test_what_decides_what_runs_is_carried_or_refused() -> None:
    made = deepcopy(MANIFEST)
    (container,) = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    del container["command"]
    container["args"] = ["--epochs", "1"]
    with pytest.raises(
        Fault, match=r"args=\['--epochs', '1'\] without command: the image's entryp"
    ):
        migrate.migrate(PYTORCHJOB, made)
    container["command"] = ["torchrun", "--bogus"]
    with pytest.raises(Fault, match="--migrate: command: unrecognized|no program"):
        migrate.migrate(PYTORCHJOB, made)
    container |= {"command": ["python", "t.py"], "args": []}
    container["env"].append({"name": "TRAINER_LR", "value": "0.5"})
    values, notes = migrate.migrate(PYTORCHJOB, made)
    assert "trainer" not in values
    assert any("trainer settings lr: left out, because python runs" in note for note in notes)
    del container["command"], container["args"]
    assert migrate.migrate(PYTORCHJOB, made)[0]["trainer"] == {"lr": 0.5}


def test_an_elastic_job_stays_elastic() -> None:
    made = deepcopy(MANIFEST)
    made["spec"]["elasticPolicy"] = {"minReplicas": 2, "maxReplicas": 6}
    assert migrate.migrate(PYTORCHJOB, made)[0]["nodes"] == {"min": 2, "max": 6}


def test_auto_on_a_cpu_is_reported() -> None:
    made = only(render(job(), "pytorchjob"), "PyTorchJob")
    made["spec"]["nprocPerNode"] = "auto"
    values, notes = migrate.migrate(PYTORCHJOB, made)
    assert "procsPerNode" not in values
    assert any("nprocPerNode='auto'" in note for note in notes)


def test_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "old.yaml"
    source.write_text(yaml.safe_dump(MANIFEST))
    assert command.main(["--migrate", str(source)]) == 0
    seen = capsys.readouterr()
    assert seen.out.startswith("# From old.yaml. Not migrated:\n#   ")
    assert "note: env HF_TOKEN: looks like a credential" in seen.err
    target = tmp_path / "job.yaml"
    target.write_text(seen.out)
    assert command.main([str(target), "-o", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    "broken",
    [{}, {"spec": {}}, {"metadata": None}, {"spec": {"pytorchReplicaSpecs": {"Worker": {}}}}],
)
def test_what_is_no_pytorchjob_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(Fault, match="--migrate: not a PyTorchJob"):
        migrate.migrate(PYTORCHJOB, broken)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("replicas", "two", "invalid literal for int"),
        ("containers", [], "no container of its pod is called pytorch"),
        ("limits", {"nvidia.com/gpu": "8k"}, "nvidia.com/gpu: .8k. is not a number"),
    ],
)
def test_what_is_odd_in_a_pytorchjob_is_one_line(place: str, value: Any, words: str) -> None:
    made = deepcopy(MANIFEST)
    master = made["spec"]["pytorchReplicaSpecs"]["Master"]
    inside = master["template"]["spec"]
    holders = {"replicas": master, "containers": inside}
    holders.get(place, inside["containers"][0]["resources"])[place] = value
    with pytest.raises(Fault, match=f"--migrate: not a PyTorchJob: {words}"):
        migrate.migrate(PYTORCHJOB, made)
    made = deepcopy(MANIFEST)
    made["spec"]["pytorchReplicaSpecs"]["Worker"] = made["metadata"]["labels"] = None
    assert migrate.migrate(PYTORCHJOB, made)[0]["nodes"] == 1


def test_stdout_holds_yaml_alone(tmp_path: Path) -> None:
    source = tmp_path / "old.yaml"
    source.write_text(yaml.safe_dump(MANIFEST))
    with contextlib.redirect_stdout(io.StringIO()) as words:
        migrate.print_migrated(source)
    assert yaml.safe_load(words.getvalue())["name"] == "bert"
