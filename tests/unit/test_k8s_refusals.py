"""What cannot work is refused in one line that names the place, with exit 64 and nothing written."""

# ruff: noqa: E501  # the table reads better with a case a line

import os
import subprocess
import sys
from pathlib import Path

import pytest

from k8s import command
from tests.rendering import EXAMPLE, ROOT, without

LONG = "a" * 64
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

# What is set on the example job, and what its refusal says, key first.
SETTINGS = [
    # the list
    (["resources.gpus=2"], "resources.gpus: no such key; did you mean resources.gpu?"),
    (["gpu=2"], "gpu: no such key; did you mean resources.gpu?"),
    (["colour=red"], "colour: no such key; choose name, namespace, launcher"),
    (["trainer.mode=dpp"], "trainer.mode='dpp': no such mode; choose auto, single"),
    ([f"name={LONG}"], f"name='{LONG}': makes the name {LONG}-0, 66 characters where 63 are allowed; a job name of at most 61 would do"),
    (["name=Digits"], "name='Digits': must be lower-case letters, digits and '-', start with a letter and not end with '-'; digits would do"),
    (["resources.gpu=8", "procsPerNode=9"], "procsPerNode=9: more ranks than the 8 of resources.gpu"),
    (["trainer.globalBatch=65"], "trainer.globalBatch=65: does not divide over 2 data-parallel ranks; 64 or 66 would"),
    (["trainer.globalBatch=64", "trainer.microBatch=5"], "trainer.microBatch=5: does not divide the 32 samples"),
    (["resources.memory=128Mi"], "resources.memory='128Mi': must be more than resources.shm, 256Mi, which is counted in it; 512Mi would do"),
    (["resources.memory=256Mi"], "resources.memory='256Mi': must be more than resources.shm"),
    (["resources.memory=2GB"], "resources.memory='2GB': not a quantity; for GB write G or Gi"),
    (["resources.memory=512m"], "resources.memory='512m': must be a whole number of bytes"),
    (["resources.cpu=-1"], "resources.cpu='-1': must be at least 1m"),
    (["env=[{name: A, value: x}, {name: A, value: y}]"], "env[1].name='A': given twice, first in env[0]"),
    (["nodes=0"], "nodes=0: must be at least 1"),
    (["trainer.mesh=dp_replicate=4"], "trainer.mesh='dp_replicate=4': multiplies to 4, but the world size is 2; dp_replicate=2 would do"),
    # types
    (["nodes='2'"], "nodes='2': must be a whole number"),
    (["nodes=2.0"], "nodes=2.0: must be a whole number"),
    (["nodes=yes"], "nodes=True: must be a whole number"),
    (["nodes=[2]"], "nodes=[2]: must be a whole number"),
    (["resources.gpu=2", "resources.gpuResource=nvidia.com/mig-1g.10gb"], "resources.gpu=2: a process sees one slice of nvidia.com/mig-1g.10gb only"),
    (["resources=8"], "resources=8: must be a mapping"),
    (["env={A: x}"], "env={'A': 'x'}: must be a list"),
    (["env=[A]"], "env[0]='A': must be a mapping"),
    (["env=[{name: A, value: 1}]"], "env[0].value=1: must be text; write it in quotes"),
    (["env=[{name: A}]"], "env[0]: must have exactly one of value, valueFrom"),
    (["name="], "name: missing"),
    (["trainer.lr=[0.1]"], "trainer.lr=[0.1]: must be one value: text, a number, true or false"),
    (["trainer.lr={a: b}"], "trainer.lr={'a': 'b'}: must be one value"),
    (["annotations.a=1"], "annotations.a=1: must be text"),
    # the trainer's settings
    (["trainer.golbalBatch=64"], "trainer.golbalBatch: no such setting; did you mean trainer.globalBatch?"),
    (["trainer.global_batch=64"], "trainer.global_batch: no such setting; did you mean trainer.globalBatch?"),
    (["trainer.GlobalBatch=64"], "trainer.GlobalBatch: no such setting; did you mean trainer.globalBatch?"),
    (["trainer.lr=-1"], "trainer.lr='-1': must be greater than 0"),
    (["trainer.lr=.inf"], "trainer.lr='inf': must be a finite number"),
    (["trainer.epochs=1.5"], "trainer.epochs='1.5': must be a valid integer"),
    (["trainer.task=digit"], "trainer.task='digit': no such task; choose "),
    (["trainer.mode=single"], "trainer.mode='single': runs in one process, but there are 2 ranks"),
    (["trainer.out=runs/x"], "trainer.out='runs/x': must be within /out"),
    (["trainer.out=/outside"], "trainer.out='/outside': must be within /out"),
    (["trainer.data=/elsewhere", "data.pvc=d"], "trainer.data='/elsewhere': must be within /data"),
    # names
    (["name=1st"], "name='1st': must be lower-case letters"),
    (["name=a-"], "name='a-': must be lower-case letters"),
    (["name=a.b"], "name='a.b': must be lower-case letters, digits and '-', start with a letter and not end with '-'; a-b would do"),
    ([f"name={LONG[:62]}"], f"name='{LONG[:62]}': makes the name {LONG[:62]}-0, 64 characters where 63 are allowed; a job name of at most 61 would do"),
    ([f"name={LONG[:60]}", "nodes=512", "trainer.globalBatch=512"], f"name='{LONG[:60]}': makes the name {LONG[:60]}-511, 64 characters where 63 are allowed; a job name of at most 59 would do"),
    ([f"name={LONG[:49]}", "launcher=jobset"], f"name='{LONG[:49]}': makes the name {LONG[:49]}-node-0-0-xxxxx, 64 characters where 63 are allowed; a job name of at most 48 would do"),
    (["namespace=Team"], "namespace='Team': must be at most 63 lower-case letters"),
    (["image=a b"], "image='a b': not an image reference"),
    (["image=--privileged"], "image='--privileged': not an image reference"),
    (["image="], "image: missing; launcher job runs it"),
    (["launcher=slurm"], "launcher='slurm': no such launcher; choose compose, docker, job, jobset, local, pytorchjob, trainjob, volcano"),
    (["launcher=../job"], "launcher='../job': no such launcher"),
    (["resources.gpu=1", "resources.gpuResource=gpu"], "resources.gpuResource='gpu': must be the name of an extended resource"),
    (["resources.gpuResource=kubernetes.io/gpu"], "resources.gpuResource='kubernetes.io/gpu': must be"),
    (["labels[a b]=x"], "labels.a b='a b': must be [domain/]name"),
    (["labels.team=a b"], "labels.team='a b': must be at most 63"),
    (["labels[app.kubernetes.io/name]=x"], "labels.app.kubernetes.io/name: set by muster"),
    (["labels[jobset.sigs.k8s.io/priority]=x"], "labels.jobset.sigs.k8s.io/priority: set by muster"),
    (["labels[volcano.sh/job-name]=x"], "labels.volcano.sh/job-name: set by muster"),
    (["labels[batch.kubernetes.io/job-name]=x"], "labels.batch.kubernetes.io/job-name: set by muster"),
    # variables that are set elsewhere
    (["env=[{name: PET_NNODES, value: x}]"], "env[0].name='PET_NNODES': not for env; set nodes"),
    (["env=[{name: PET_RDZV_ID, value: x}]"], "env[0].name='PET_RDZV_ID': not for env; the launcher sets it"),
    (["env=[{name: TRAINER_GLOBAL_BATCH, value: x}]"], "env[0].name='TRAINER_GLOBAL_BATCH': not for env; set trainer.globalBatch"),
    (["env=[{name: WORLD_SIZE, value: x}]"], "env[0].name='WORLD_SIZE': not for env; set nodes"),
    (["env=[{name: RANK, value: x}]"], "env[0].name='RANK': not for env"),
    (["env=[{name: MASTER_ADDR, value: x}]"], "env[0].name='MASTER_ADDR': not for env"),
    (["env=[{name: a-b, value: x}]"], "env[0].name='a-b': must be letters, digits and '_'"),
    (["env=[{name: 'A=B', value: x}]"], "env[0].name='A=B': must be letters, digits and '_'"),
    # where a variable's value is
    (["env=[{name: A, value: a, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"], "env[0]: must have exactly one of value, valueFrom"),
    (["env=[{name: A, valueFrom: {}}]"], "env[0].valueFrom: must have exactly one of fieldRef, configMapKeyRef, secretKeyRef"),
    (["env=[{name: A, valueFrom: {secretRef: {name: a}}}]"], "env[0].valueFrom.secretRef: no such key; did you mean"),
    (["env=[{name: A, valueFrom: {secretKeyRef: {name: a}}}]"], "env[0].valueFrom.secretKeyRef.key: missing"),
    (["env=[{name: A, valueFrom: {secretKeyRef: {name: a, key: 'a b'}}}]"], "env[0].valueFrom.secretKeyRef.key='a b': must be at most 253 letters"),
    (["env=[{name: A, valueFrom: {fieldRef: {fieldPath: spec.image}}}]"], "env[0].valueFrom.fieldRef.fieldPath='spec.image': not a field of a pod that a variable can hold"),
    (["env=[{name: TRAINER_LR, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"], "env[0].name='TRAINER_LR': not for env; set trainer.lr"),
    (["envFrom=[{prefix: A_}]"], "envFrom[0]: must have exactly one of configMapRef, secretRef"),
    (["envFrom=[{configMapRef: {name: a}, secretRef: {name: b}}]"], "envFrom[0]: must have exactly one of"),
    (["envFrom=[{configMapRef: {name: A}}]"], "envFrom[0].configMapRef.name='A': must be at most 253"),
    # images
    (["imagePullPolicy=always"], "imagePullPolicy='always': must be 'Always', 'IfNotPresent' or 'Never'"),
    (["imagePullSecrets=[A]"], "imagePullSecrets[0]='A': must be at most 253 lower-case"),
    (["faults.suspend=1"], "faults.suspend=1: must be a valid boolean"),
    # volumes
    (["data.pvc=d", "data.hostPath=/d"], "data: must have exactly one of pvc, hostPath, csi, pull; has pvc, hostPath"),
    (["data={}"], "data: must have exactly one of pvc, hostPath, csi, pull; has none"),
    (["data.emptyDir=1Gi"], "data.emptyDir: no such key; choose pvc, hostPath, csi, pull"),
    (["checkpoints.pvc=Claim"], "checkpoints.pvc='Claim': must be at most 253 lower-case"),
    (["checkpoints.hostPath=ckpt"], "checkpoints.hostPath='ckpt': must be an absolute path"),
    (["checkpoints.hostPath=/a/../b"], "checkpoints.hostPath='/a/../b': must be an absolute path"),
    (["checkpoints.emptyDir=0"], "checkpoints.emptyDir='0': must be more than 0"),
    (["data={pull: {source: ftp://a/b, size: 1Gi}}"], "data.pull.source='ftp://a/b': must be s3://BUCKET/PREFIX"),
    (["data={pull: {source: s3://a/b}}"], "data.pull.size: missing; it is room for it"),
    (["checkpoints={claim: {size: 1Gi, accessMode: RWX}}"], "checkpoints.claim.accessMode='RWX': must be 'ReadWriteOnce', 'ReadWriteMany'"),
    (["checkpoints={claim: {size: 1Gi, accessMode: ReadWriteOnce}}"], "checkpoints.claim.accessMode='ReadWriteOnce': 2 pods on several machines mount it"),
    (["volumes=[{name: a, path: /a}]"], "volumes[0]: must have exactly one of pvc, hostPath, csi, claim, ephemeral, emptyDir, configMap, secret; has none"),
    (["volumes=[{name: a, path: /a, pvc: b, secret: c}]"], "volumes[0]: must have exactly one of"),
    (["volumes=[{name: out, path: /a, pvc: b}]"], "volumes[0].name='out': taken; choose another"),
    (["volumes=[{name: a, path: /out/, pvc: b}]"], "volumes[0].path='/out': taken; choose another"),
    (["volumes=[{name: a, path: /, pvc: b}]"], "volumes[0].path='/': taken; choose another"),
    (["volumes=[{name: a, path: /a, pvc: b}, {name: c, path: /a, pvc: b}]"], "volumes[1].path='/a': taken; choose another"),
    (["volumes=[{name: A, path: /a, pvc: b}]"], "volumes[0].name='A': must be at most 63 lower-case"),
    (["volumes=[{name: a, path: a, pvc: b}]"], "volumes[0].path='a': must be an absolute path"),
    (["volumes=[{name: a, path: /a, csi: {driver: x, volumeAttributes: {}}}]"], "volumes[0].csi.volumeAttributes: no such key; did you mean volumes[0].csi.attributes?"),
    # what one node has
    (["resources.rdma={roce: 1}"], "resources.rdma.roce='roce': must be the name of an extended resource"),
    (["resources.rdma={a.b/c: 0}"], "resources.rdma.a.b/c=0: must be at least 1"),
    (["resources.devices={nvidia.com/gpu: 1}", "resources.gpu=1"], "resources.devices.nvidia.com/gpu=1: asked for twice"),
    (["resources.devices={a.b/c: 1}", "resources.rdma={a.b/c: 1}"], "resources.devices.a.b/c=1: asked for twice"),
    # elastic
    (["nodes={min: 1}"], "nodes.max: missing; it is most nodes"),
    (["nodes={min: 0, max: 2}"], "nodes.min=0: must be at least 1"),
    (["nodes={min: 3, max: 2}"], "nodes: max=2 is less than min=3"),
    (["nodes={min: 1, max: 2, avg: 1}"], "nodes.avg: no such key; choose min, max"),
    (["nodes={min: 2, max: 4}", "trainer.mesh=dp_replicate=2"], "trainer.mesh='dp_replicate=2': multiplies to 2, but the world size is 3; dp_replicate=3 would do (with 3 of nodes' 2 to 4)"),
    # nccl
    (["nccl.presets=[fast]"], "nccl.presets[0]='fast': must be 'tcp', 'infiniband', 'roce', 'efa', 'patient' or 'debug'"),
    (["nccl.variables={HOME: a}"], "nccl.variables.HOME='HOME': not a variable of NCCL, libfabric or UCX; put it in env"),
    (["nccl.socketInterface=a b"], "nccl.socketInterface='a b': "),
    (["nccl.topology={}"], "nccl.topology.configMap: missing"),
    # code and setup
    (["code={git: 'https://me:secret@h/a', revision: main}"], "code.git='https://me:secret@h/a': must be https://HOST/PATH"),
    (["code={git: /srv/a, revision: main}"], "code.git='/srv/a': must be https://HOST/PATH"),
    (["code={git: 'git@h:a', revision: main}"], "code.secret: missing; ssh needs ssh-privatekey and known_hosts"),
    (["code={git: 'https://h/a'}"], "code.revision: missing"),
    (["code={git: 'https://h/a', revision: --upload-pack=x}"], "code.revision='--upload-pack=x': must be a commit, a tag or a branch"),
    (["code={git: 'https://h/a', revision: main, path: ../b}"], "code.path='../b': "),
    (["setup=make"], "setup='make': must be a list"),
    (["setup=['']"], "setup[0]='': "),
    # beside the job
    (["network.egress=[{cidr: example.com}]"], "network.egress[0].cidr='example.com': must be a network"),
    (["network.egress=[{cidr: 10.0.0.1/8}]"], "network.egress[0].cidr='10.0.0.1/8': must be a network"),
    (["network.egress=[{cidr: 10.0.0.0/8, ports: [0]}]"], "network.egress[0].ports[0]=0: must be at least 1"),
    (
        ["metrics={port: 9400}", "trainer.metricsPort=9401"],
        "trainer.metricsPort=9401: metrics.port is 9400; leave out the former",
    ),
    (["metrics={}"], "metrics.port: missing; it is the port"),
    (["metrics={port: 1, interval: often}"], "metrics.interval='often': "),
    (["tensorboard={}"], "tensorboard: reads the run folder, which no other pod can see; set checkpoints.pvc"),
    (["tensorboard={}", "appWrapper=true", "checkpoints.pvc=a"], "tensorboard: never ends"),
    (["faults.cleanPodPolicy=Some"], "faults.cleanPodPolicy='Some': must be 'All', 'Running' or 'None'"),
    (["faults.cleanPodPolicy=All"], "faults.cleanPodPolicy='All': not on launcher job"),
    # scheduling
    (["scheduling.queu=a"], "scheduling.queu: no such key; did you mean scheduling.queue?"),
    (["scheduling.queue=A"], "scheduling.queue='A': must be at most 253 lower-case"),
    (["scheduling.priority=a"], "scheduling.priority: is for Kueue, so scheduling.queue must be set"),
    (["scheduling.topology.required=a"], "scheduling.topology: is for Kueue, so scheduling.queue must be set"),
    (["scheduling.topology={}"], "scheduling.topology: must have exactly one of required, preferred"),
    (["scheduling.topology={required: a, preferred: b}"], "scheduling.topology: must have exactly one of required, preferred"),
    (["scheduling.gang=1"], "scheduling.gang=1: must be a valid boolean"),
    (["scheduling.spread=a", "scheduling.pack=a"], "scheduling.pack='a': spread says the opposite; choose one"),
    (["scheduling.nodeSelector=[a]"], "scheduling.nodeSelector=['a']: must be a mapping"),
    (["scheduling.nodeSelector.gpu=1"], "scheduling.nodeSelector.gpu=1: must be text"),
    (["scheduling.tolerations=[{key: a, operator: Exist}]"], "scheduling.tolerations[0].operator='Exist': must be 'Equal' or 'Exists'"),
    (["scheduling.tolerations=[{operator: Exists, value: a}]"], "scheduling.tolerations[0]: operator Exists takes no value"),
    (["scheduling.tolerations=[{value: a}]"], "scheduling.tolerations[0]: without a key the operator must be Exists"),
    (["scheduling.tolerations=[{key: a, tolerationSeconds: 1}]"], "scheduling.tolerations[0]: tolerationSeconds needs effect: NoExecute"),
    (["scheduling.affinity.nodes={}"], "scheduling.affinity.nodes='nodes': must be 'nodeAffinity', 'podAffinity' or 'podAntiAffinity'"),
    ([f"scheduling.affinity.nodeAffinity.{REQUIRED}=a", "scheduling.hostIgnoreList=[a]"], f"scheduling.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms: must be a list of terms"),
    ([f"scheduling.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms=[a]", "scheduling.hostIgnoreList=[a]"], f"scheduling.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]: must be a mapping"),
    (["scheduling.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution=a", "scheduling.pack=a"], "scheduling.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution: must be a list"),
    (["scheduling.hostIgnoreList=gpu-1"], "scheduling.hostIgnoreList='gpu-1': must be a list"),
    (["labels[kueue.x-k8s.io/queue-name]=x"], "labels.kueue.x-k8s.io/queue-name: set scheduling.queue instead"),
    # faults
    (["network.secondary=[A_b]"], "network.secondary[0]='A_b': must be"),
    (["scheduling.gangTimeout=9"], "scheduling.gangTimeout: is of a gang, so scheduling.gang must be true"),
    (["trainer.checkpointTimeout=300"], "trainer.checkpointTimeout=300: a checkpoint may take longer than the 50 s that faults.gracePeriod=60 leaves it, and is lost then; set faults.gracePeriod=310"),
    (["faults.gracePeriod=10"], "faults.gracePeriod=10: the entrypoint needs 10 s of it"),
    (["faults.maxRestarts=-1"], "faults.maxRestarts=-1: must be at least 0"),
    (["faults.deadline=0"], "faults.deadline=0: must be at least 1"),
    (["faults.deadline=1h"], "faults.deadline='1h': must be a whole number"),
    # the pod's patch
    (["podPatch.metadata.labels[app.kubernetes.io/instance]=x"], "podPatch.metadata.labels.app.kubernetes.io/instance: the job's own"),
    (["podPatch.metadata.labels.a='b c'"], "podPatch.metadata.labels.a='b c': must be at most 63"),
    (["podPatch.metadata.name=a"], "podPatch.metadata.name='name': must be 'labels' or 'annotations'"),
    (["podPatch.spec.toleration=[]"], "podPatch.spec.toleration: no such field; did you mean tolerations?"),
    (["podPatch.spec.restartPolicy=Always"], "podPatch.spec.restartPolicy: not to be patched; the launcher's restarts"),
    (["podPatch.spec.terminationGracePeriodSeconds=1"], "podPatch.spec.terminationGracePeriodSeconds: not to be patched; set faults.gracePeriod"),
    (["podPatch.spec.securityContext=[a]"], "podPatch.spec.securityContext: must be a mapping"),
    (["podPatch.spec.volumes.a=b"], "podPatch.spec.volumes: must be a list"),
    (["podPatch.spec.volumes=[a]"], "podPatch.spec.volumes[0]: must be a mapping with name"),
    (["podPatch.spec.volumes=[{name: x, $patch: delete}]"], "podPatch.spec.volumes[x]: there is none to delete"),
    (["podPatch.spec.volumes=[{name: out, $patch: delete}]"], "podPatch.spec.containers[trainer].volumeMounts[/out]: no volume is called 'out'"),
    (["podPatch.spec.securityContext.$patch=delete"], "podPatch.spec.securityContext.$patch: 'delete' is not for a mapping"),
    (["podPatch.spec.securityContext.$retainKeys=[]"], "podPatch.spec.securityContext.$retainKeys: no such directive"),
    (["podPatch.spec.containers=a"], "podPatch.spec.containers: must be a list of mappings"),
    (["podPatch.spec.containers=[{image: a}]"], "podPatch.spec.containers[0]: must be a mapping with name"),
    (["podPatch.spec.containers=[{name: trainer, $patch: delete}]"], "podPatch.spec.containers[trainer]: the trainer's, and stays"),
    (["podPatch.spec.containers=[{name: trainer, image: a}]"], "podPatch.spec.containers[trainer].image: not to be patched; set image"),
    (["podPatch.spec.containers=[{name: trainer, command: [a]}]"], "podPatch.spec.containers[trainer].command: not to be patched"),
    (["podPatch.spec.containers=[{name: trainer, comand: [a]}]"], "podPatch.spec.containers[trainer].comand: no such field; did you mean command?"),
    (["podPatch.spec.containers=[{name: trainer, env: [{name: PET_NNODES, value: '3'}]}]"], "podPatch.spec.containers[trainer].env[PET_NNODES]: the launcher or `trainer` sets it"),
    (["podPatch.spec.containers=[{name: trainer, env: [{name: TRAINER_LR, value: '3'}]}]"], "podPatch.spec.containers[trainer].env[TRAINER_LR]: the launcher or"),
    (["podPatch.spec.containers=[{name: trainer, env: [{name: PET_NNODES, $patch: delete}]}]"], "podPatch.spec.containers[trainer].env[PET_NNODES]: the launcher or"),
    (["podPatch.spec.containers=[{name: trainer, env: {$patch: replace}}]"], "podPatch.spec.containers[trainer].env: must be a list"),
    (["podPatch.spec.containers=[{name: trainer, volumeMounts: [{name: x, mountPath: /x}]}]"], "podPatch.spec.containers[trainer].volumeMounts[/x]: no volume is called 'x'; add it to volumes"),
    (["podPatch.spec.containers=[{name: trainer, volumeMounts: [{name: [x], mountPath: /x}]}]"], "podPatch.spec.containers[trainer].volumeMounts[/x]: no volume is called ['x']"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "says"), SETTINGS, ids=lambda value: str(value)[:50])
def test_a_setting_that_cannot_work(
    settings: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(
        [str(EXAMPLE), *(part for s in settings for part in ("--set", s))], tmp_path, capsys
    )
    place = line.removeprefix("render.py: ").removeprefix("--set: ").removeprefix(f"{EXAMPLE}: ")
    assert place.startswith(says)


def refused(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str], *, out: bool = True
) -> str:
    """Run the command in this process, see that it refuses, and return the line it says."""
    target = folder / "written"
    code = command.main([*arguments, "-o", str(target)] if out else arguments)
    seen = capsys.readouterr()
    assert code == 64
    assert seen.out == ""
    assert seen.err.count("\n") == 1, seen.err
    assert seen.err.startswith("render.py: ")
    assert not target.exists()
    return seen.err.strip()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no job file; e.g."),
        (["none.yaml"], "none.yaml: No such file or directory"),
        ([str(EXAMPLE), "--bogus"], "unrecognized arguments: --bogus; --help shows how"),
        ([str(EXAMPLE), "--laun", "job"], "unrecognized arguments"),
        ([str(EXAMPLE), "--launcher"], "expected one argument"),
        (
            [str(EXAMPLE), "--launcher", "slurm"],
            "--launcher: launcher='slurm': no such launcher; choose",
        ),
        ([str(EXAMPLE), "--launcher", "job", "--launcher", "local"], "add -o DIR"),
        ([str(EXAMPLE), "--json"], "--json: goes with --plan"),
        ([str(EXAMPLE), "--all"], "--all: makes several files; add -o DIR"),
        ([str(EXAMPLE), "--all", "--launcher", "job"], "--all: stands for every launcher"),
        ([str(EXAMPLE), "--diff", "none"], "--diff none: No such file or directory"),
        ([str(EXAMPLE), "--each"], "--each: makes several files; add -o DIR"),
        ([str(EXAMPLE), "--split"], "--split: makes several files; add -o DIR"),
        ([str(EXAMPLE), "--each", "--diff", "a", "-o", "b"], "--diff: compares with one file"),
        (
            [str(EXAMPLE), "--profile", "gke"],
            "--profile gke: no such profile; choose aks-ndv5, eks",
        ),
        (["--migrate", "none.yaml"], "--migrate none.yaml: No such file or directory"),
        (["--migrate", str(EXAMPLE)], "holds 0 PyTorchJobs of kubeflow.org/v1; must be one"),
        (
            [str(EXAMPLE), "--launcher", "job", "--launcher", "jobset", "--diff", str(EXAMPLE)],
            "--diff: compares with one launcher's file",
        ),
        (["--explain", "schedulin"], "--explain schedulin: no such key; did you mean scheduling?"),
        (["--explain", "env[0].valu"], "no such key; did you mean env.value?"),
        (["--explain", "name.x"], "--explain name.x: no such key; choose none below"),
        (["--explain", ""], "--explain : no such key; choose name, namespace, launcher"),
        ([str(EXAMPLE), "--set", "nodes"], "--set 'nodes': must be KEY=VALUE"),
        ([str(EXAMPLE), "-o", f"{EXAMPLE}"], "-o "),
        ([str(EXAMPLE), "-o", f"{EXAMPLE}/below"], "-o "),
    ],
)
def test_a_command_line_that_cannot_work(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(arguments, tmp_path, capsys, out=False)


def test_one_launcher_refused_is_all_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(EXAMPLE), "--launcher", "local", "--launcher", "job", "--set", "image="]
    assert "image: missing; launcher job" in refused(arguments, tmp_path, capsys)


@pytest.mark.parametrize(
    ("launcher", "setting", "says"),
    [
        (
            "local",
            "setup=[make]",
            "setup: not on launcher local; nothing runs on this machine before",
        ),
        (
            "docker",
            "code={git: 'https://h/a', revision: b}",
            "code: not on launcher docker; nothing",
        ),
        ("compose", "setup=[make]", "setup: not on launcher compose"),
        ("trainjob", "nodes={min: 1, max: 2}", "nodes.min=1: not on launcher trainjob; Kubeflow"),
        ("trainjob", "appWrapper=true", "appWrapper=True: not on launcher trainjob"),
        (
            "trainjob",
            "scheduling={gang: true, gangTimeout: 9, schedulerName: volcano}",
            "scheduling.gangTimeout=9: scheduler volcano waits as its own configuration says",
        ),
        (
            "volcano",
            "scheduling={gang: true, gangTimeout: 9}",
            "scheduling.gangTimeout=9: not on launcher volcano",
        ),
        ("volcano", "appWrapper=true", "appWrapper=True: not on launcher volcano"),
        (
            "jobset",
            "faults.cleanPodPolicy=All",
            "faults.cleanPodPolicy='All': not on launcher jobset",
        ),
        ("trainjob", "faults.ttl=0", "faults.ttl=0: not on launcher trainjob; a TrainJob has none"),
        (
            "job",
            "scheduling.exclusiveTopology=a",
            "scheduling.exclusiveTopology='a': not on launcher job",
        ),
        (
            "pytorchjob",
            "scheduling.exclusiveTopology=a",
            "scheduling.exclusiveTopology='a': not on",
        ),
        (
            "volcano",
            "scheduling={queue: a, priority: b}",
            "scheduling.priority='b': not on launcher v",
        ),
        (
            "volcano",
            "scheduling={queue: a, topology: {required: b}}",
            "scheduling.topology: not on",
        ),
        ("volcano", "scheduling.exclusiveTopology=a", "scheduling.exclusiveTopology='a': not on"),
        (
            "volcano",
            "faults.suspend=true",
            "faults.suspend=True: not on launcher volcano; a Volcano",
        ),
        ("volcano", "faults.deadline=60", "faults.deadline=60: not on launcher volcano; a Volcano"),
    ],
)
def test_what_a_launcher_lacks(
    launcher: str, setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_it = [p for key in without(launcher, EXAMPLE) for p in ("--set", key)]
    arguments = [str(EXAMPLE), "--launcher", launcher, *without_it, "--set", setting]
    assert f"--set: {says}" in refused(arguments, tmp_path, capsys)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ["resources.gpu=1", "resources.gpuResource=amd.com/gpu"],
            "docker hands out NVIDIA GPUs only",
        ),
        (["data.hostPath=/a,b"], "data.hostPath='/a,b': docker mounts no path with a comma"),
        (['checkpoints.hostPath=/a"b'], "checkpoints.hostPath='/a\"b': docker mounts no path"),
    ],
)
def test_what_docker_cannot(
    settings: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [part for setting in settings for part in ("--set", setting)]
    assert says in refused([str(EXAMPLE), "--launcher", "docker", *sets], tmp_path, capsys)


def test_a_key_with_a_line_end_still_makes_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text('{name: a, "b\\nc": 1}')
    assert "b\\nc: no such key" in refused([str(path)], tmp_path, capsys)


def test_the_file_at_fault_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("{name: a, image: b, nodes: 0, trainer: {lr: 0.1}}")
    second.write_text("{trainer: {epochs: 3}}")
    assert f"render.py: {first}: nodes=0" in refused([str(first), str(second)], tmp_path, capsys)
    second.write_text("{nodes: -1}")
    assert f"render.py: {second}: nodes=-1" in refused([str(first), str(second)], tmp_path, capsys)


def test_an_earlier_file_stays_when_a_later_one_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(EXAMPLE), "--launcher", "job", "--launcher", "local", "-o", str(tmp_path)]
    assert command.main(arguments) == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert sorted(before) == ["job.yaml", "local.sh"]
    capsys.readouterr()
    assert command.main([*arguments, "--set", "nodes=0"]) == 64
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: a\nnodes: [1\n", "job.yaml:3:1: not YAML: "),
        ("name: a\nimage: b\nnodes: 0\n", "job.yaml: nodes=0: must be at least 1"),
    ],
)
def test_as_a_process(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, str(ROOT / "render.py"), "job.yaml", "-o", "written"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.startswith(f"render.py: {says}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "written").exists()
