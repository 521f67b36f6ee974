"""The plan: what is derived from a job file, and its warnings."""

from typing import Any

import pytest

from k8s import launchers
from k8s.plan import make
from tests.rendering import CLUSTER, LAUNCHERS, job, planned
from trainer.config.exits import Action, Exit, Fault, codes_for


@pytest.mark.parametrize(
    ("values", "procs", "world"),
    [
        ({}, 1, 1),
        ({"nodes": 4}, 1, 4),
        ({"nodes": 2, "resources": {"gpu": 8}}, 8, 16),
        ({"nodes": 2, "resources": {"gpu": 8}, "procsPerNode": 4}, 4, 8),
        ({"procsPerNode": 3, "trainer": {"globalBatch": 6}}, 3, 3),
    ],
)
def test_ranks(values: dict[str, Any], procs: int, world: int) -> None:
    made = planned(job(**values))
    assert made.size.procs == procs
    assert made.sizing.world_size == world
    assert made.sizing.batches.replicas == world


@pytest.mark.parametrize(
    ("resources", "shm"),
    [
        ({}, "1Gi"),
        ({"memory": "2Gi"}, "512Mi"),
        ({"memory": "64Gi"}, "16Gi"),
        ({"memory": "1Ti"}, "32Gi"),
        ({"memory": "10G"}, "2384Mi"),
        ({"memory": "3Mi"}, "768Ki"),
        ({"memory": "2Gi", "shm": "1.5Gi"}, "1.5Gi"),
        ({"shm": "8G"}, "8G"),
        ({"memory": 2147483648, "shm": 1073741824}, "1073741824"),
    ],
)
def test_shared_memory(resources: dict[str, Any], shm: str) -> None:
    made = planned(job(resources=resources))
    assert made.resources.shm == shm
    assert {"medium": "Memory", "sizeLimit": shm} in [
        m.source.get("emptyDir") for m in made.storage.mounts
    ]


def test_the_same_amount_in_other_letters_is_no_room_beside_it() -> None:
    with pytest.raises(Exception, match="resources.memory='1024Mi': must be more than"):
        planned(job(resources={"memory": "1024Mi", "shm": "1Gi"}))
    assert planned(job(resources={"memory": "1025Mi", "shm": "1Gi"})).resources.shm == "1Gi"


@pytest.mark.parametrize(
    ("cpu", "procs", "threads"),
    [
        ("8", 1, "8"),
        ("8", 4, "2"),
        ("500m", 1, "1"),
        ("3", 2, "1"),
        (2.5, 1, "2"),
        ("2500m", 1, "2"),
    ],
)
def test_threads_of_a_pod(cpu: Any, procs: int, threads: str) -> None:
    made = planned(job(resources={"cpu": cpu}, procsPerNode=procs))
    assert made.container.environment["OMP_NUM_THREADS"] == threads


def test_threads_are_left_to_the_entrypoint_where_it_can_count_them() -> None:
    assert "OMP_NUM_THREADS" not in planned(job()).container.environment
    assert (
        "OMP_NUM_THREADS" not in planned(job(resources={"cpu": 2}), "local").container.environment
    )
    own = job(resources={"cpu": 8}, env=[{"name": "OMP_NUM_THREADS", "value": "3"}])
    assert planned(own).container.environment["OMP_NUM_THREADS"] == "3"


def test_grace_leaves_time_to_save() -> None:
    made = planned(job(faults={"gracePeriod": 90}))
    assert (made.lifetime.grace, made.lifetime.shutdown) == (90, 90 - make.MARGIN)


@pytest.mark.parametrize(
    ("launcher", "nodes", "longest"),
    [
        ("job", 1, 61),
        ("job", 10, 61),
        ("job", 11, 60),
        ("job", 512, 59),
        ("pytorchjob", 1, 54),
        ("pytorchjob", 2, 54),
        ("pytorchjob", 11, 54),
        ("pytorchjob", 12, 53),
        ("jobset", 1, 48),
        ("jobset", 11, 47),
        ("trainjob", 10, 48),
        ("volcano", 1, 56),
        ("volcano", 11, 55),
        ("local", 4, 63),
    ],
)
def test_longest_name(launcher: str, nodes: int, longest: int) -> None:
    trainer = {"globalBatch": nodes}
    made = planned(job(name="a" * longest, nodes=nodes, trainer=trainer), launcher)
    assert len(made.rendezvous.longest_host + launchers.find(launcher).pod_suffix) == 63
    with pytest.raises(Exception, match=f"use at most {longest}$"):
        planned(job(name="a" * (longest + 1), nodes=nodes, trainer=trainer), launcher)


@pytest.mark.parametrize(
    ("values", "inside", "on_this_machine"),
    [
        ({}, "/out/a-job", "build/a-job/run"),
        ({"trainer": {"out": "/out/x/y"}}, "/out/x/y", "build/a-job/run"),
        ({"checkpoints": {"pvc": "c"}}, "/out/a-job", "build/a-job/run"),
        ({"checkpoints": {"hostPath": "/mnt"}}, "/out/a-job", "/mnt/a-job"),
        ({"checkpoints": {"hostPath": "/mnt"}, "trainer": {"out": "/out/x"}}, "/out/x", "/mnt/x"),
    ],
)
def test_run_folder(values: dict[str, Any], inside: str, on_this_machine: str) -> None:
    assert planned(job(**values)).storage.out == inside
    assert planned(job(**values), "local").storage.host_out == on_this_machine


def test_a_run_folder_of_this_machine_is_for_local_only() -> None:
    assert planned(job(trainer={"out": "runs/x"}), "local").storage.host_out == "runs/x"


@pytest.mark.parametrize(
    ("values", "inside", "on_this_machine"),
    [
        ({}, None, None),
        ({"trainer": {"data": "/opt/set"}}, "/opt/set", "/opt/set"),
        ({"data": {"pvc": "d"}}, "/data", None),
        ({"data": {"hostPath": "/mnt"}}, "/data", "/mnt"),
        ({"data": {"hostPath": "/mnt"}, "trainer": {"data": "/data/a"}}, "/data/a", "/mnt/a"),
    ],
)
def test_data(values: dict[str, Any], inside: str | None, on_this_machine: str | None) -> None:
    made = planned(job(**values))
    assert (made.storage.data, made.storage.host_data) == (inside, on_this_machine)
    mounted = [mount for mount in made.storage.mounts if mount.name == "data"]
    assert [m.read_only for m in mounted] == ([True] if "data" in values else [])


@pytest.mark.parametrize(
    ("key", "written", "variable", "text"),
    [
        ("lr", "1e-3", "TRAINER_LR", "0.001"),
        ("lr", 0.00001, "TRAINER_LR", "1e-05"),
        ("epochs", 3, "TRAINER_EPOCHS", "3"),
        ("epochs", "3", "TRAINER_EPOCHS", "3"),
        ("resume", "never", "TRAINER_RESUME", "never"),
        ("task", "my.module:Task", "TRAINER_TASK", "my.module:Task"),
        ("steps", None, "TRAINER_STEPS", None),
        ("mesh", "", "TRAINER_MESH", None),
    ],
)
def test_settings(key: str, written: Any, variable: str, text: str | None) -> None:
    assert planned(job(trainer={key: written})).container.environment.get(variable) == text


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "checkpoints: kept only in the pod"),
        ({"checkpoints": {"emptyDir": "1Gi"}}, "checkpoints: kept only in the pod"),
        ({"trainer": {"resume": "never"}}, "trainer.resume='never': after each restart"),
        ({"trainer": {"resume": "force:/out/a"}}, "begins again from that checkpoint"),
        (
            {"checkpoints": {"pvc": "c"}, "trainer": {"checkpoints": "/elsewhere"}},
            "trainer.checkpoints: kept only in the pod",
        ),
        ({"checkpoints": {"hostPath": "/c"}}, "checkpoints.hostPath: each machine has its own"),
        ({"data": {"hostPath": "/d"}}, "data.hostPath: each machine has its own"),
        ({"checkpoints": {"pvc": "c"}, "nodes": 2}, "must be ReadWriteMany"),
        ({"resources": {"gpu": 8}, "procsPerNode": 2}, "6 of 8 GPUs per node have no rank"),
        ({}, "resources.memory: not set"),
        ({"image": "a/b"}, "image: a/b may change at any time; use a version"),
        ({"image": "r.example:5000/b"}, "may change at any time"),
        ({"image": "a/b:latest"}, "image: a/b:latest may change at any time"),
        ({"nodes": 2}, "faults.deadline: not set"),
        (
            {"nodes": 2, "disruptionBudget": True},
            "draining a machine waits until the job has ended",
        ),
        (
            {
                "nodes": {"min": 2, "max": 3},
                "trainer": {"globalBatch": 6},
                "disruptionBudget": True,
            },
            "draining a machine waits while only 2 run",
        ),
        ({"nccl": {"socketInterface": "eth1"}}, "nccl: ignored, because there is no GPU"),
    ],
)
def test_warning(values: dict[str, Any], says: str) -> None:
    assert says in "\n".join(planned(job(**values)).warnings)


@pytest.mark.parametrize("place", ["s3://bucket/run", "/scratch/run"])
def test_no_warning_of_checkpoints_in_a_bucket_or_on_a_volume(place: str) -> None:
    scratch = {"name": "scratch", "path": "/scratch", "pvc": "c"}
    kept = job(trainer={"checkpoints": place}, volumes=[scratch])
    assert "kept only in the pod" not in "\n".join(planned(kept).warnings)


@pytest.mark.parametrize(
    ("launcher", "scheduling", "says"),
    [
        ("job", {"gang": True}, "scheduling.gang: needs a scheduler that reads a PodGroup"),
        ("jobset", {"gang": True}, "scheduling.gang: needs a scheduler that reads a PodGroup"),
        ("trainjob", {"gang": True}, "scheduling.gang: needs a scheduler that reads a PodGroup"),
        ("pytorchjob", {"gang": True}, "only if started with --gang-scheduler-name"),
    ],
)
def test_warning_of_a_gang(launcher: str, scheduling: dict[str, Any], says: str) -> None:
    assert says in "\n".join(planned(job(scheduling=scheduling), launcher).warnings)
    named = job(scheduling={**scheduling, "schedulerName": "mine"})
    assert ("needs a scheduler" in says) == (says not in str(planned(named, launcher).warnings))


@pytest.mark.parametrize("launcher", ["local", "docker"])
def test_a_machine_warns_of_what_it_has_not(launcher: str) -> None:
    values = job(nodes=2, data={"pvc": "d"}, checkpoints={"pvc": "c"})
    values["envFrom"] = [{"secretRef": {"name": "a"}}]
    values |= {"nccl": {"presets": ["debug"]}, "metrics": {"port": 9400}, "tensorboard": {}}
    words = "\n".join(planned(values, launcher).warnings)
    for key in (
        "envFrom: not on",
        "nodes: the ranks of all 2",
        "data.pvc: not on",
        "checkpoints.pvc: not on",
        "nccl: ignored on this machine",
        "metrics: ignored on this machine",
        "tensorboard: ignored on this machine",
    ):
        assert key in words


@pytest.mark.parametrize("image", ["a:1", "r.example:5000/a:1", f"a@sha256:{'0' * 64}"])
def test_an_image_that_is_pinned_is_no_cause_for_a_warning(image: str) -> None:
    assert "tomorrow" not in "\n".join(planned(job(image=image)).warnings)
    assert "tomorrow" not in "\n".join(planned(job(image="a:latest"), "local").warnings)


def test_no_warning_without_cause() -> None:
    values = job(
        nodes=1,
        resources={"memory": "1Gi"},
        checkpoints={"pvc": "c"},
        data={"pvc": "d"},
        faults={"deadline": 60},
        network={"egress": [{"cidr": "10.0.0.0/8"}]},
    )
    for launcher in ("job", "pytorchjob"):
        assert planned(values, launcher).warnings == ()
    assert planned(job(), "local").warnings == ()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_is_its_folder(launcher: str) -> None:
    found = launchers.find(launcher)
    assert found.name == launcher
    assert (launchers.TEMPLATES / found.template).is_file()
    assert found.restarts(planned(job(), launcher))


def test_the_restarts_in_words_name_every_code_that_fails_the_job() -> None:
    for launcher in CLUSTER:
        words = launchers.find(launcher).restarts(planned(job(), launcher))
        assert ", ".join(map(str, codes_for(Action.FAIL))) in words


@pytest.mark.parametrize(
    ("trainer", "refusal"),
    [
        (
            {"task": "digits", "mode": "tp"},
            "task digits: its model cannot be split over the axis tp",
        ),
        ({"task": "digits", "mesh": "pp=1,tp=2"}, "tasks that can: charlm-gpt, tokens"),
        (
            {"task": "seqclass", "mode": "pp", "microBatch": 8},
            "cannot be cut into stages, as mode pp",
        ),
        ({"task": "mnist"}, "trainer.task='mnist': needs its data set; set data"),
        ({"task": "imagefolder"}, "trainer.task='imagefolder': needs its data set"),
        ({"task": "charlm-gpt", "mode": "tp"}, None),
        ({"task": "digits", "mode": "pp"}, None),
        ({"task": "mnist", "data": "/in/the/image"}, None),
    ],
)
def test_what_a_built_in_task_cannot_do_is_refused_before_there_is_a_pod(
    trainer: dict[str, Any], refusal: str | None
) -> None:
    values = job(nodes=2, procsPerNode=1, trainer=trainer)
    if refusal is None:
        assert planned(values)
        return
    with pytest.raises(Fault) as caught:
        planned(values)
    assert caught.value.code == Exit.CONFIG
    assert refusal in str(caught.value)


@pytest.mark.parametrize("launcher", ["docker", "compose"])
def test_a_container_without_the_data_that_its_task_needs_is_refused(launcher: str) -> None:
    """Its script mounts the caller's TRAINER_DATA only where the job file has a data set."""
    with pytest.raises(Fault, match="task='mnist': needs its data set; set data"):
        planned(job(trainer={"task": "mnist"}), launcher)
    assert planned(job(trainer={"task": "mnist"}), "local")
