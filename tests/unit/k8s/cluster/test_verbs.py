"""The verbs of `python -m k8s`, in this process, with an API that only stores."""

import gzip
import json
import os
import pty
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_objects import (
    COMPLETED,
    FAILED,
    JOBSET,
    RUNNING,
    Cluster,
    Run,
    ended,
    fill,
    golden,
    interrupt,
    jobset,
    pod,
    refuse,
)
from tests.conftest import ROOT, clean_environment, run_command


def test_status_tells_state_pods_and_progress(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    code, out, err = run(config, "status", "digits", "--json")
    said = json.loads(out)
    assert code == 0
    assert (said["phase"], said["launcher"], said["restarts"]) == ("running", "jobset", 2)
    assert [(p["node"], p["procs"]) for p in said["pods"]] == [(0, 2), (1, 2)]
    # 30 steps of 32 samples at 96 samples a second
    assert said["progress"]["seconds_left"] == pytest.approx(10)
    assert said["progress"]["goodput"] == 0.873
    assert said["progress"]["spent_s"]["start"] == 8.4
    assert said["warnings"] == ["digits-node-0-1: FailedMount: no such volume"]
    assert "context test, namespace lab" in err
    code, out, _ = run(config, "status", "digits")
    assert code == 0
    assert (
        "step 10 of 40, loss 0.5, 96 samples/s, goodput 87% (start 8%, evaluation 4%), 0:00:10 left"
        in out
    )


def test_of_many_pods_status_shows_those_that_do_not_just_run(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    for node in range(2, 60):
        server.put("v1", "Pod", pod(f"digits-node-0-{node}", node, phase="Running"))
    code, out, _ = run(config, "status", "digits")
    assert (code, out.count("digits-node-0-")) == (0, 40 + 1)  # one of them in a warning
    assert "not shown: 20 Running; --all shows every pod" in out
    again = {"containerStatuses": [{"name": "trainer", "restartCount": 3}]}
    for node, state in {
        57: {"phase": "Pending"},
        58: ended(70),
        59: {"phase": "Running"} | again,
    }.items():
        server.put("v1", "Pod", pod(f"digits-node-0-{node}", node, **state))
    _, out, _ = run(config, "status", "digits")
    assert [line.split()[1] for line in out.splitlines() if "digits-node-0-5" in line] == [
        "57",
        "58",
        "59",
    ]
    assert "not shown: 57 Running; --all shows every pod" in out
    _, out, _ = run(config, "status", "digits", "--all")
    assert out.count("digits-node-0-") == 60 + 1
    assert "not shown" not in out


def test_status_says_which_code_a_job_has(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    assert "code: " not in run(config, "status", "digits")[1]
    kind = ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (job,) = server.all(*kind)
    about = {"muster/code-commit": "c0ffee-dirty", "muster/code-sha256": "5bda46"}
    server.put(*kind, {**job, "metadata": {**job["metadata"], "annotations": about}})
    code, out, _ = run(config, "status", "digits")
    assert code == 0
    assert "code: sha256 5bda46, commit c0ffee-dirty" in out
    said = json.loads(run(config, "status", "digits", "--json")[1])
    assert said["code"] == {"sha256": "5bda46", "commit": "c0ffee-dirty"}


@pytest.mark.slow
def test_a_machine_that_does_not_answer_hides_no_more_than_what_it_has(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    """As with a lost node: the API server answers 500 for the logs of its pods, and works otherwise."""
    server, config = cluster
    fill(server, **RUNNING)
    lost = partial(refuse, server, 500, "dial tcp 10.0.0.7:10250: no route to host")
    lost(at="/log")
    code, out, _ = run(config, "--timeout", "2", "status", "digits", "--json")
    said = json.loads(out)
    assert (code, said["phase"], said["progress"]) == (0, "running", None)
    assert said["warnings"][-1].startswith("the log of digits-node-0-0 cannot be read: ")
    assert "no route to host" in said["warnings"][-1]
    code, out, _ = run(config, "--timeout", "2", "top", "digits", "--once")
    assert (code, "no route to host" in out) == (0, True)
    code, out, err = run(config, "--timeout", "2", "logs", "digits")
    assert (code, out.count("(no log: "), "no route to host" in err) == (69, 2, True)
    refuse(server, 403, 'User "jane" cannot get resource "pods/log"', at="/log")
    code, _, err = run(config, "logs", "digits")
    assert (code, "not allowed" in err) == (64, True)
    lost(at="digits-node-0-0/log")
    assert run(config, "--timeout", "2", "logs", "digits")[0] == 0
    code, _, err = run(config, "--timeout", "2", "logs", "digits", "--save", str(tmp_path))
    assert (code, "no route to host" in err) == (69, True)
    kept = {path.name for path in tmp_path.iterdir()}
    assert {"events.txt", "digits-node-0-0.yaml", "digits-node-0-1.log"} <= kept
    assert "digits-node-0-0.log" not in kept
    lost(at="digits-node-0-1/log")
    assert json.loads(run(config, "status", "digits", "--json")[1])["progress"]["step"] == 10


@pytest.mark.parametrize(
    ("status", "pods", "expected"),
    [
        (COMPLETED, [0, 0], 0),
        (FAILED, [69, 72], 72),
        (FAILED, [197, 143], 69),  # shifted for PyTorchJob
        (FAILED, [], 70),
    ],
)
def test_wait_ends_with_the_code_that_speaks_for_the_job(
    status: Any, pods: list[int], expected: int, run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    server.put(*JOBSET, jobset(**status))
    for node, code in enumerate(pods):
        server.put("v1", "Pod", pod(f"digits-{node}", node, **ended(code)))
    for limit in ([], ["--timeout", "0"]):
        code, _, _ = run(config, "wait", "digits", *limit)
        assert code == expected


def test_wait_for_a_job_that_succeeds_needs_no_right_on_pods(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **COMPLETED)
    refuse(server, 403, 'User "ci" cannot list resource "pods"', at="/pods")
    code, _, err = run(config, "wait", "digits")
    assert (code, err.splitlines()[-1]) == (0, "k8s: succeeded")


def test_wait_is_bounded(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    for seconds in ("-1", "nan"):
        assert run(config, "wait", "digits", "--timeout", seconds)[0] == 64
    code, _, err = run(config, "wait", "digits", "--timeout", "1")
    assert code == 69
    assert "is running after 1 s" in err


def test_a_long_name_is_shown_to_its_end(run: Run, cluster: Cluster) -> None:
    """Without a terminal a table has 80 columns."""
    server, config = cluster
    name = "sweep-lr0-01-weightdecay0-0001-seed0-abc"
    server.put(*JOBSET, jobset(None, name, **FAILED))
    host = {"nodeName": "ip-10-0-12-34.us-west-2.compute.internal"}
    reason = "CreateContainerConfigError"
    one = pod(f"{name}-node-0-0-x1y2z", 0, job=name, phase="Pending", reason=reason)
    server.put("v1", "Pod", one | {"spec": one["spec"] | host})

    def column(number: int, *verb: str) -> str:
        lines = run(config, *verb)[1].splitlines()
        return "".join(line.split("│")[number].strip() for line in lines if line.startswith("│"))

    assert column(1, "list") == name
    assert column(2, "status", name) == f"{name}-node-0-0-x1y2z"
    assert column(3, "status", name) == host["nodeName"]
    assert column(6, "status", name) == reason
    assert column(3, "top", name) == 2 * f"{name}-node-0-0-x1y2z"  # of each rank


def test_a_job_that_was_started_again_often_has_its_progress(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    for number in range(9):
        server.put("v1", "Pod", pod(f"digits-a{number}", 0, **ended(143)))
    assert json.loads(run(config, "status", "digits", "--json")[1])["progress"]["step"] == 10


def test_top_tells_every_rank(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    rows = json.loads(run(config, "top", "digits", "--json")[1])
    assert [(r["rank"], r["node"], r["cpu"], r["gpu"], r["pod_cpu"]) for r in rows] == [
        (0, 0, 0.5, 0.0, 1.5),
        (1, 0, 0.5, 0.25, 1.5),
        (2, 1, 0.5, 0.5, 1.5),
        (3, 1, 0.5, 0.75, 1.5),
    ]
    code, out, _ = run(config, "top", "digits")
    assert code == 0
    assert "75%" in out
    assert "step 10 of 40" in out
    del server.groups["metrics.k8s.io/v1beta1"]
    assert "no metrics of pods" in run(config, "top", "digits")[1]


def test_doctor_says_what_the_cluster_takes(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    del server.groups["batch.volcano.sh/v1alpha1"]
    allocatable = {"nvidia.com/gpu": "8", "cpu": "4"}
    server.put("v1", "Node", {"metadata": {"name": "n"}, "status": {"allocatable": allocatable}})
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    server.put("v1", "Namespace", {"metadata": {"name": "lab", "labels": level}})
    server.put("node.k8s.io/v1", "RuntimeClass", {"metadata": {"name": "nvidia"}})
    storage = {"metadata": {"name": "shared"}, "provisioner": "nfs.csi.k8s.io"}
    server.put("storage.k8s.io/v1", "StorageClass", storage)
    queue = {"metadata": {"name": "team"}, "spec": {"clusterQueue": "all"}}
    server.put("kueue.x-k8s.io/v1beta2", "LocalQueue", queue)
    quota = {"hard": {"pods": "9"}, "used": {"pods": "2"}}
    server.put("v1", "ResourceQuota", {"metadata": {"name": "q"}, "status": quota})
    code, out, _ = run(config, "doctor", "--json")
    found = {finding["about"]: finding for finding in json.loads(out)}
    assert code == 0
    assert found["kubernetes"]["good"] is True
    assert found["launcher jobset"]["good"] is True
    assert found["launcher volcano"]["good"] is False
    assert "install Volcano" in found["launcher volcano"]["text"]
    assert found["nodes"]["text"] == "1 node with 8 nvidia.com/gpu"
    assert found["runtime classes"]["text"] == "nvidia"
    assert found["storage classes"]["text"] == "shared (ReadWriteMany)"
    assert found["queues"]["text"] == "of Kueue: team (all)"
    assert found["quota"]["text"] == "pods 2 of 9"
    assert "enforced: restricted" in found["pod security"]["text"]
    assert found["launchers"]["text"] == ("this cluster can run job, jobset, pytorchjob, trainjob")
    assert "RuntimeClass" not in run(config, "doctor")[2]


@pytest.mark.slow
@pytest.mark.parametrize("verb", [["logs", "digits", "-f"], ["wait", "digits"]])
def test_an_interrupt_ends_it_at_once(verb: list[str], cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    interrupt(config, *verb, line="running|step")


@pytest.mark.slow
def test_top_looks_again_on_a_terminal_until_interrupted(cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "k8s", "top", "digits", "--every", "0.2"],
        cwd=ROOT,
        env=clean_environment(KUBECONFIG=str(config), TERM="xterm"),
        stdout=its,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen = b""
    while seen.count(b"step 10 of 40") < 3:
        seen += os.read(ours, 4096)
    assert sum("metrics.k8s.io" in path for _, path in server.requests) >= 3
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in err) == (130, False)
    os.close(its)
    os.close(ours)


@pytest.mark.slow
def test_the_command_line_itself(cluster: Cluster) -> None:
    ran = run_command([sys.executable, "-m", "k8s", "list"], env={"KUBECONFIG": os.devnull})
    assert ran.returncode == 64
    assert ran.stderr.startswith("k8s: no cluster")


def test_submit_reads_standard_input(cluster: Cluster) -> None:
    server, config = cluster

    def submit(text: bytes) -> tuple[int, str]:
        command, environment = [sys.executable, "-m", "k8s", "submit", "-"], clean_environment()
        environment["KUBECONFIG"] = str(config)
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, input=text, capture_output=True, check=False
        )
        return ran.returncode, ran.stderr.decode()

    manifest = golden("job").read_bytes()
    assert submit(gzip.compress(manifest)) == (64, "k8s: -: not UTF-8 at byte 1 (exit 64)\n")
    assert submit(manifest)[0] == 0
    assert server.get("batch/v1", "Job", "lab", "digits-ddp")
