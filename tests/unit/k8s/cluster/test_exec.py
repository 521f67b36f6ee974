"""Commands in pods through a test API server, and the verb `profile`."""

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from k8s.cluster.client.api import Forbidden
from k8s.cluster.client.exec import Ended, execute
from k8s.plan.model import LAUNCHER
from tests.bounds import bounded
from tests.cluster_objects import (
    COMPLETED,
    JOBSET,
    RUNNING,
    Cluster,
    Run,
    connection,
    fill,
    jobset,
    pod,
    refuse,
)
from trainer.config.exits import Fault


def here(_: str, command: list[str]) -> list[str]:
    """Run the command on this machine."""
    return command


def test_a_command_has_its_input_and_gives_its_output_and_exit_code(cluster: Cluster) -> None:
    server, config = cluster
    server.enter = here
    found = connection(config, timeout=20)
    given = bytes(range(256)) * 4000  # more than one message, and not a multiple of it
    script = f"head -c {len(given)} | sha256sum; echo wrong >&2; exit 7"
    ended = execute(found, "a-pod", ["sh", "-c", script], container="trainer", stdin=given)
    assert ended == Ended(7, f"{hashlib.sha256(given).hexdigest()}  -\nwrong\n")
    assert execute(found, "a-pod", ["cat"], container="trainer") == Ended(0, "")  # has no input
    (_, path), *_ = [one for one in server.requests if "/exec?" in one[1]]
    assert "/namespaces/lab/pods/a-pod/exec?" in path
    assert "container=trainer" in path
    many = execute(found, "a-pod", ["head", "-c", "200000", "/dev/zero"], container="trainer")
    assert many == Ended(0, "\0" * 200000)


def test_a_wait_for_it_is_bounded(cluster: Cluster) -> None:
    server, config = cluster
    server.enter = here
    began = time.monotonic()
    with pytest.raises(Fault, match="exec in a-pod: sleep: no exit code") as raised:
        execute(connection(config, timeout=0.5), "a-pod", ["sleep", "2"], container="trainer")
    assert raised.value.code == 69
    assert time.monotonic() - began < 1.9


@pytest.mark.slow
def test_what_a_pod_writes_without_end_is_not_kept(cluster: Cluster) -> None:
    server, config = cluster
    server.enter = here
    found = connection(config, timeout=60)

    def ask() -> None:
        execute(found, "a-pod", ["yes"], container="trainer")

    assert bounded(ask, seconds=30).endswith(
        "exec in a-pod: yes: no exit code: it writes more than 1,048,576 bytes"
    )


@pytest.mark.parametrize(
    ("status", "message", "code", "words"),
    [
        (403, 'User "jane" cannot create resource "pods/exec"', 64, "--rbac user:NAME --exec"),
        (404, 'pods "a-pod" not found', 64, 'pods "a-pod" not found'),
        (400, "container not found", 64, "container not found"),
        (500, "error dialing backend", 69, "error dialing backend"),
    ],
)
def test_a_refusal_says_why(
    status: int, message: str, code: int, words: str, cluster: Cluster
) -> None:
    server, config = cluster
    refuse(server, status, message)
    with pytest.raises(Fault) as raised:
        execute(connection(config, timeout=5), "a-pod", ["true"], container="trainer")
    assert (raised.value.code, words in str(raised.value)) == (code, True)
    assert isinstance(raised.value, Forbidden) == (status == 403)


def test_a_server_that_is_gone_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    server, config = cluster
    config.write_text(config.read_text().replace(str(server.port), "1"))
    with pytest.raises(Fault, match="exec in a-pod: .*refused") as raised:
        execute(connection(config, timeout=5), "a-pod", ["true"], container="trainer")
    assert raised.value.code == 69


def test_profile_asks_each_pod_and_says_where_the_traces_are(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    first = pod("digits-node-0-0", 0, phase="Running")
    first["spec"]["containers"][0]["env"].append({"name": "TRAINER_OUT", "value": "/out/digits"})
    server.put("v1", "Pod", first)
    server.put("v1", "Pod", pod("digits-node-0-2", 2, phase="Pending"))
    sent = []

    def enter(path: str, command: list[str]) -> list[str]:
        sent.append((path.rsplit("/", 1)[1], command))
        return ["true"] if path.endswith("-0") else ["sh", "-c", "echo no such process; exit 1"]

    server.enter = enter
    code, out, _ = run(config, "profile", "digits")
    kill = ["sh", "-c", "kill -USR2 1"]
    assert sorted(sent) == [("digits-node-0-0", kill), ("digits-node-0-1", kill)]
    assert code == 69
    assert out.splitlines() == [
        "digits-node-0-0: asked; its ranks write the next 5 steps to /out/digits/profile",
        "digits-node-0-1: cannot be asked: exit 1: no such process",
        "digits-node-0-2: Pending, not asked",
    ]
    server.enter = lambda _, __: ["true"]
    assert run(config, "profile", "digits")[0] == 0


def own_program() -> dict[str, Any]:
    found = pod("digits-node-0-0", 0, phase="Running")
    found["spec"]["containers"][0]["command"] = ["python3", LAUNCHER, "train.py"]
    return found


@pytest.mark.parametrize(
    ("status", "pods", "code", "words"),
    [
        (COMPLETED, [pod("digits-node-0-0", 0, phase="Running")], 64, "has ended (succeeded)"),
        (RUNNING, [pod("digits-node-0-0", 0, phase="Pending")], 69, "none of its pods runs"),
        (RUNNING, [own_program()], 64, "runs its own program"),
    ],
)
def test_profile_is_refused_where_there_is_nothing_to_profile(
    status: Any, pods: list[Any], code: int, words: str, run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    server.put(*JOBSET, jobset(**status))
    for one in pods:
        server.put("v1", "Pod", one)
    ended, out, err = run(config, "profile", "digits")
    assert (ended, out, words in err) == (code, "", True), err


def test_profile_names_the_right_that_is_missing(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    refuse(server, 403, 'User "jane" cannot create resource "pods/exec"', at="/exec?")
    code, out, err = run(config, "profile", "digits")
    assert (code, out) == (64, "")
    assert "you may not create pods/exec" in err
