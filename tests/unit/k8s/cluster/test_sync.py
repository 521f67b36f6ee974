"""`sync`: which jobs accept changed code, and in which order the pods get it.

tests/launch/test_code_sync.py tests the part in the pods, tests/cluster/test_in_pods.py both together.
"""

from pathlib import Path
from typing import Any

import pytest

from k8s.plan.model import LAUNCHER
from tests.cluster_objects import COMPLETED, JOBSET, RUNNING, Cluster, Run, jobset, pod, refuse
from tests.standin.server import Server

TAKES: dict[str, str | None] = {
    "PET_NNODES": "2",
    "PET_MAX_RESTARTS": "3",
    "MUSTER_CODE": "/muster-code/code.tar.gz",
}


def fill(
    server: Server, *, status: Any = RUNNING, pods: int = 2, program: bool = True, **changed: Any
) -> None:
    """Create a job whose pods have these variables, without those that are None."""
    server.put(*JOBSET, jobset(**status))
    for node in range(pods):
        found = pod(f"digits-{node}", node, phase="Running")
        (container,) = found["spec"]["containers"]
        wanted = {name: value for name, value in (TAKES | changed).items() if value is not None}
        container["env"] += [{"name": name, "value": value} for name, value in wanted.items()]
        if program:
            container["command"] = ["python3", LAUNCHER, "train.py"]
        server.put("v1", "Pod", found)


class Pods:
    """Answers each step like a pod, and records the steps; `says` has other answers."""

    def __init__(self, server: Server, **says: str) -> None:
        self.says = {"put": "echo put", "commit": ":", "restart": "echo taken"} | says
        self.steps: list[tuple[str, str]] = []
        server.enter = self.enter

    def enter(self, path: str, command: list[str]) -> list[str]:
        name, step = path.rsplit("/", 1)[1], command[command.index("-c") + 2]
        self.steps.append((step, name))
        script = self.says.get(f"{step}_{name[-1]}", self.says[step])
        return ["sh", "-c", script]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    place = tmp_path / "code"
    place.mkdir()
    (place / "train.py").write_text("1")
    return str(place)


def test_every_pod_has_the_code_before_a_rank_ends(run: Run, cluster: Cluster, folder: str) -> None:
    server, config = cluster
    fill(server)
    pods = Pods(server, restart_1="echo asked")
    (Path(folder) / "id_rsa").write_text("secret")
    code, out, err = run(config, "sync", "digits", folder)
    assert code == 0, err
    assert [step for step, _ in pods.steps] == ["put", "put", "commit", "commit"] + ["restart"] * 2
    first, second, last = out.splitlines()
    assert first == "digits-0: has the code; its ranks restart with it"
    assert second == "digits-1: has the code; its ranks restart when they have ended"
    assert last.startswith("digits: code ")
    assert "id_rsa looks like a key and is not copied" in err


def test_an_unchanged_folder_restarts_nothing(run: Run, cluster: Cluster, folder: str) -> None:
    server, config = cluster
    fill(server)
    pods = Pods(server, put="echo same")
    code, out, _ = run(config, "sync", "digits", folder)
    assert (code, out.startswith("digits already runs this code: ")) == (0, True)
    assert {step for step, _ in pods.steps} == {"put"}
    pods.says["put_1"] = "echo put"  # a pod that got the code and then lost the connection
    assert run(config, "sync", "digits", folder)[0] == 0
    assert [one for one in pods.steps if one[0] != "put"] == [
        ("commit", "digits-1"),
        ("restart", "digits-1"),
    ]


def test_where_one_pod_cannot_be_given_it_none_uses_it(
    run: Run, cluster: Cluster, folder: str
) -> None:
    server, config = cluster
    fill(server)
    pods = Pods(server, put_1="echo Traceback; echo no space left on device; exit 71")
    code, out, err = run(config, "sync", "digits", folder)
    assert (code, out) == (71, "")
    assert "digits-1: no space left on device; no pod uses the new code" in err
    assert {step for step, _ in pods.steps} == {"put"}
    pods.says |= {"put_1": "echo put", "commit_0": "exit 3"}
    code, _, err = run(config, "sync", "digits", folder)
    assert (code, "digits-0: exit 3; try again" in err) == (70, True)
    assert "restart" not in {step for step, _ in pods.steps}


@pytest.mark.parametrize(
    ("job", "code", "words"),
    [
        ({"status": COMPLETED}, 64, "job digits has ended (succeeded): none of its pods runs"),
        ({"pods": 0}, 69, "none of its pods runs"),
        ({"pods": 1}, 69, "1 of 2 pods run; try again when all do"),
        ({"MUSTER_CODE": None}, 64, "has no code folder; add `code: {path: .}` to its job file"),
        ({"PET_MAX_RESTARTS": None}, 64, "`faults: {restarts: ranks}` in its job file"),
        ({"PET_NNODES": "1:2"}, 64, "is elastic"),
        ({"program": False}, 64, "runs muster's trainer, which loads its task once"),
    ],
)
def test_a_job_that_takes_no_code_is_refused(
    job: Any, code: int, words: str, run: Run, cluster: Cluster, folder: str
) -> None:
    server, config = cluster
    fill(server, **job)
    pods = Pods(server)
    ended, out, err = run(config, "sync", "digits", folder)
    assert (ended, out, words in err) == (code, "", True), err
    assert pods.steps == []


def test_the_folder_and_the_right_are_named(run: Run, cluster: Cluster, folder: str) -> None:
    server, config = cluster
    fill(server)
    code, _, err = run(config, "sync", "digits", f"{folder}/none")
    assert (code, "none: no such folder; give the folder of code.path" in err) == (64, True)
    refuse(server, 403, 'User "jane" cannot create resource "pods/exec"', at="/exec?")
    code, out, err = run(config, "sync", "digits", folder)
    assert (code, out, "you may not create pods/exec" in err) == (64, "", True)
