"""The plan: what is derived from a job file, and what people are warned of."""

from typing import Any

import pytest

from k8s import launchers, plan
from tests.rendering import LAUNCHERS, job, planned, render
from trainer import contract
from trainer.exits import Action, codes_for


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
    assert made.procs == procs
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
    assert made.shm == shm
    assert {"medium": "Memory", "sizeLimit": shm} in [m.source.get("emptyDir") for m in made.mounts]


def test_the_same_amount_in_other_letters_is_no_room_beside_it() -> None:
    with pytest.raises(Exception, match="resources.memory='1024Mi': must be more than"):
        planned(job(resources={"memory": "1024Mi", "shm": "1Gi"}))
    assert planned(job(resources={"memory": "1025Mi", "shm": "1Gi"})).shm == "1Gi"


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
    assert made.environment["OMP_NUM_THREADS"] == threads


def test_threads_are_left_to_the_entrypoint_where_it_can_count_them() -> None:
    assert "OMP_NUM_THREADS" not in planned(job()).environment
    assert "OMP_NUM_THREADS" not in planned(job(resources={"cpu": 2}), "local").environment
    own = job(resources={"cpu": 8}, env=[{"name": "OMP_NUM_THREADS", "value": "3"}])
    assert planned(own).environment["OMP_NUM_THREADS"] == "3"


def test_grace_leaves_time_to_save() -> None:
    made = planned(job(faults={"gracePeriod": 90}))
    assert (made.grace, made.shutdown) == (90, 90 - plan.MARGIN)


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
        ("local", 4, 63),
    ],
)
def test_longest_name(launcher: str, nodes: int, longest: int) -> None:
    trainer = {"globalBatch": nodes}
    made = planned(job(name="a" * longest, nodes=nodes, trainer=trainer), launcher)
    assert len(made.longest_host) == 63
    with pytest.raises(Exception, match=f"a job name of at most {longest} would do"):
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
    assert planned(job(**values)).out == inside
    assert planned(job(**values), "local").host_out == on_this_machine


def test_a_run_folder_of_this_machine_is_for_local_only() -> None:
    assert planned(job(trainer={"out": "runs/x"}), "local").host_out == "runs/x"


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
    assert (made.data, made.host_data) == (inside, on_this_machine)
    mounted = [mount for mount in made.mounts if mount.name == "data"]
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
    assert planned(job(trainer={key: written})).environment.get(variable) == text


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "checkpoints: kept in the pod only"),
        ({"checkpoints": {"emptyDir": "1Gi"}}, "checkpoints: kept in the pod only"),
        ({"checkpoints": {"hostPath": "/c"}}, "checkpoints.hostPath: each machine has its own"),
        ({"data": {"hostPath": "/d"}}, "data.hostPath: each machine has its own"),
        ({"checkpoints": {"pvc": "c"}, "nodes": 2}, "must be ReadWriteMany"),
        ({"resources": {"gpu": 8}, "procsPerNode": 2}, "6 of 8 GPUs per node have no rank"),
        ({}, "resources.memory: not given"),
        ({"nodes": 2}, "faults.deadline: not given"),
    ],
)
def test_warning(values: dict[str, Any], says: str) -> None:
    assert says in "\n".join(planned(job(**values)).warnings)


@pytest.mark.parametrize("launcher", ["local", "docker"])
def test_a_machine_warns_of_what_it_has_not(launcher: str) -> None:
    values = job(nodes=2, data={"pvc": "d"}, checkpoints={"pvc": "c"})
    words = "\n".join(planned(values, launcher).warnings)
    for key in ("nodes: the ranks of all 2", "data.pvc: not on", "checkpoints.pvc: not on"):
        assert key in words


def test_no_warning_without_cause() -> None:
    values = job(
        nodes=1,
        resources={"memory": "1Gi"},
        checkpoints={"pvc": "c"},
        data={"pvc": "d"},
        faults={"deadline": 60},
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
    for launcher in ("job", "pytorchjob"):
        words = launchers.find(launcher).restarts(planned(job(), launcher))
        assert ", ".join(map(str, codes_for(Action.FAIL))) in words


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_the_contract_of_a_job_resolves_to_its_ranks(nodes: int) -> None:
    """What template and kubelet give to pod i is what `trainer.launch` takes for node i."""
    rendered = render(job(nodes=nodes, procsPerNode=2, trainer={"globalBatch": 40}), "job")
    service, created = rendered.objects
    template = created["spec"]["template"]
    for index in range(created["spec"]["completions"]):
        seen = contract.resolve(given_by_kubelet(template, index), devices=lambda: 0)
        assert (seen.min_nodes, seen.max_nodes, seen.ranks_per_node) == (nodes, nodes, 2)
        assert (seen.node_rank, seen.elastic, seen.local_address) == (index, False, "10.0.0.9")
        # The name of pod 0 in the Service's domain, which is the pod's subdomain.
        domain = service["metadata"]["name"]
        assert template["spec"]["subdomain"] == domain
        assert seen.endpoint == f"{created['metadata']['name']}-0.{domain}:29500"
        assert seen.shutdown_timeout == 110


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_the_contract_of_a_pytorchjob_resolves_to_its_ranks(nodes: int) -> None:
    """The training operator sets these variables from the replicas and the master's port."""
    made = render(
        job(nodes=nodes, procsPerNode=2, trainer={"globalBatch": 40}), "pytorchjob"
    ).objects[0]
    replicas = made["spec"]["pytorchReplicaSpecs"]
    assert sum(one["replicas"] for one in replicas.values()) == nodes
    assert ("Worker" in replicas) == (nodes > 1)
    for index in range(nodes):
        template = replicas["Worker" if index else "Master"]["template"]
        container = template["spec"]["containers"][0]
        assert container["name"] == "pytorch"
        port = next(
            p["containerPort"] for p in container["ports"] if p["name"] == "pytorchjob-port"
        )
        own = given_by_kubelet(template, index)
        by_controller = {
            "PET_NNODES": str(nodes),
            "PET_NPROC_PER_NODE": made["spec"]["nprocPerNode"],
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": f"{made['metadata']['name']}-master-0",
            "PET_MASTER_PORT": str(port),
        }
        assert not own.keys() & by_controller.keys()
        seen = contract.resolve(own | by_controller, devices=lambda: 0)
        assert (seen.max_nodes, seen.ranks_per_node, seen.node_rank) == (nodes, 2, index)
        assert seen.endpoint == "a-job-master-0:29500"
        assert own["MUSTER_RETRY_EXIT_OFFSET"] == "128"


def given_by_kubelet(template: dict[str, Any], index: int) -> dict[str, str]:
    fields = {
        "status.podIP": "10.0.0.9",
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
    }
    return {
        entry["name"]: entry["value"]
        if "value" in entry
        else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in template["spec"]["containers"][0]["env"]
    }
