"""The verbs of `python -m k8s`, in this process, against an API that stores what it is given."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import Server, kubeconfig, serving
from tests.conftest import ROOT, clean_environment

LABELS = {
    "app.kubernetes.io/managed-by": "muster",
    "app.kubernetes.io/instance": "digits",
    "app.kubernetes.io/component": "trainer",
}
STEP = json.dumps(
    {
        "event": "step",
        "step": 10,
        "steps": 40,
        "samples": 320,
        "samples_per_s": 96.0,
        "loss": 0.5,
    }
)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(config: Path, *arguments: str) -> tuple[int, str, str]:
        from k8s.__main__ import main

        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config)
        )
        monkeypatch.setattr(sys, "argv", ["k8s", *arguments])
        code = main()
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    with serving(tmp_path) as served:
        yield served


def jobset(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "digits", "labels": LABELS}, "spec": {}, "status": status}


def pod(name: str, node: int, **status: Any) -> dict[str, Any]:
    index = {"batch.kubernetes.io/job-completion-index": str(node)}
    return {
        "metadata": {"name": name, "labels": LABELS | index},
        "spec": {"nodeName": "machine-1"},
        "status": status,
    }


def ended(code: int) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": "Error"}}
    return {"phase": "Failed", "containerStatuses": [{"restartCount": 0, "state": state}]}


def fill(server: Server, **status: Any) -> None:
    server.put("jobset.x-k8s.io/v1alpha2", "JobSet", jobset(**status))
    for node in range(2):
        server.put("v1", "Pod", pod(f"digits-node-0-{node}", node, phase="Running"))
        server.logs[f"digits-node-0-{node}"] = f"launch: here\n{STEP}\n"


RUNNING = {"replicatedJobsStatus": [{"name": "node", "ready": 1}], "restarts": 2}
COMPLETED = {
    "conditions": [
        {"type": "Completed", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    ]
}
FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "FailedJobs"}]}


def test_status_tells_state_pods_and_progress(run: Run, cluster: tuple[Server, Path]) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    code, out, err = run(config, "status", "digits", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["phase"], told["launcher"], told["restarts"]) == ("running", "jobset", 2)
    assert [p["node"] for p in told["pods"]] == [0, 1]
    # 30 steps of 32 samples at 96 samples a second
    assert told["progress"]["seconds_left"] == pytest.approx(10)
    assert "context test, namespace lab" in err
    code, out, _ = run(config, "status", "digits")
    assert code == 0
    assert "step 10 of 40" in out


def test_submit_tries_first_and_then_applies(
    run: Run, cluster: tuple[Server, Path], tmp_path: Path
) -> None:
    server, config = cluster
    manifest = ROOT / "tests/golden/digits-ddp/jobset.yaml"
    code, _, err = run(config, "submit", str(manifest))
    assert code == 0
    assert "submitted digits-ddp" in err
    writes = [path for method, path in server.requests if method == "PATCH"]
    half = len(writes) // 2
    assert all("dryRun=All" in path for path in writes[:half])
    assert not any("dryRun" in path for path in writes[half:])
    assert any(path.endswith("/jobsets/digits-ddp") for path in server.objects)


def test_submit_writes_nothing_when_one_object_is_refused(
    run: Run, cluster: tuple[Server, Path]
) -> None:
    server, config = cluster
    server.answer = lambda method, path: (
        (422, {}, '{"message": "spec.network: forbidden"}')
        if method == "PATCH" and "/jobsets/" in path
        else None
    )
    code, _, err = run(config, "submit", str(ROOT / "tests/golden/digits-ddp/jobset.yaml"))
    assert code == 64
    assert "422: spec.network: forbidden" in err
    assert server.objects == {}


def test_submit_says_what_to_install(run: Run, cluster: tuple[Server, Path]) -> None:
    server, config = cluster
    code, _, err = run(config, "submit", str(ROOT / "tests/golden/digits-ddp/trainjob.yaml"))
    assert code == 64
    assert "install Kubeflow Trainer" in err
    assert server.objects == {}


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
    status: Any, pods: list[int], expected: int, run: Run, cluster: tuple[Server, Path]
) -> None:
    server, config = cluster
    server.put("jobset.x-k8s.io/v1alpha2", "JobSet", jobset(**status))
    for node, code in enumerate(pods):
        server.put("v1", "Pod", pod(f"digits-{node}", node, **ended(code)))
    code, _, _ = run(config, "wait", "digits")
    assert code == expected


def test_wait_is_bounded(run: Run, cluster: tuple[Server, Path]) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    code, _, err = run(config, "wait", "digits", "--timeout", "1")
    assert code == 69
    assert "is running after 1 s" in err


def test_logs_come_with_their_node_and_leave_no_thread(
    run: Run, cluster: tuple[Server, Path]
) -> None:
    import threading

    server, config = cluster
    fill(server, **COMPLETED)
    for arguments in (["logs", "digits"], ["logs", "digits", "--follow"]):
        code, out, _ = run(config, *arguments)
        assert code == 0
        assert sorted(out.splitlines()) == sorted(
            f"[node {node}] {line}" for node in range(2) for line in ("launch: here", STEP)
        )
    assert not [t for t in threading.enumerate() if "_read" in t.name]
    code, out, _ = run(config, "logs", "digits", "--node", "1")
    assert "[node 0]" not in out


def test_suspend_resume_delete_list_and_gc(run: Run, cluster: tuple[Server, Path]) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/lab/jobsets/digits"
    for verb, expected in (("suspend", True), ("resume", False)):
        assert run(config, verb, "digits")[0] == 0
        assert server.objects[path]["spec"]["suspend"] is expected
    assert [job["name"] for job in json.loads(run(config, "list", "--json")[1])] == ["digits"]
    assert run(config, "gc")[0] == 0
    assert path in server.objects
    fill(server, **COMPLETED)
    assert run(config, "suspend", "digits")[0] == 64
    assert "would delete digits" in run(config, "gc", "--dry-run")[2]
    server.put("v1", "Service", {"metadata": {"name": "digits", "labels": LABELS}})
    server.put("v1", "Service", {"metadata": {"name": "other"}})
    assert run(config, "gc")[0] == 0
    assert path not in server.objects
    assert [p for p in server.objects if "/services/" in p] == [
        "/api/v1/namespaces/lab/services/other"
    ]
    code, _, err = run(config, "delete", "digits")
    assert code == 64
    assert "no job 'digits'" in err


def test_doctor_says_which_launchers_the_cluster_takes(
    run: Run, cluster: tuple[Server, Path]
) -> None:
    _, config = cluster
    code, out, _ = run(config, "doctor", "--json")
    findings = {finding["about"]: finding for finding in json.loads(out)}
    assert code == 0
    assert findings["launcher jobset"]["good"] is True
    assert findings["launcher trainjob"]["good"] is False


VERBS = (
    ["status", "digits"],
    ["logs", "digits"],
    ["wait", "digits"],
    ["suspend", "digits"],
    ["resume", "digits"],
    ["delete", "digits"],
    ["list"],
    ["gc"],
    ["doctor"],
    ["submit", str(ROOT / "tests/golden/digits-ddp/job.yaml")],
)
BAD = {
    "500": (500, {}, '{"message": "etcd is away"}'),
    "429": (429, {"Retry-After": "1"}, "slow down"),
    "garbage": (200, {}, "<html>a proxy</html>"),
}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize("kind", [*BAD, "closed"])
def test_a_cluster_that_does_not_answer_is_one_line_and_69(
    verb: list[str], kind: str, run: Run, tmp_path: Path
) -> None:
    with serving(tmp_path) as (server, config):
        if kind != "closed":
            server.answer = lambda _, __: BAD[kind]
            code, out, err = run(config, "--timeout", "1", *verb)
    if kind == "closed":
        code, out, err = run(config, "--timeout", "1", *verb)
    assert code == 69
    assert out == ""
    assert len(err.splitlines()) == 2  # where, and what went wrong
    assert err.endswith("(exit 69)\n")


def test_a_429_is_tried_again(run: Run, cluster: tuple[Server, Path]) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    told = iter([BAD["429"], BAD["500"]])
    server.answer = lambda _, __: next(told, None)
    assert run(config, "status", "digits")[0] == 0


def test_no_namespace_is_guessed(run: Run, tmp_path: Path) -> None:
    config = kubeconfig(tmp_path, "http://127.0.0.1:1", namespace=None)
    code, _, err = run(config, "list")
    assert code == 64
    assert "context test names no namespace; say which: --namespace NAME" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stats"], "No such command 'stats'"),
        (["status"], "Missing argument"),
        (["submit", "/nowhere.yaml"], "/nowhere.yaml: No such file"),
        (["--context", "moon", "list"], "--context moon"),
    ],
)
def test_wrong_words_are_one_line_and_64(
    arguments: list[str], words: str, run: Run, cluster: tuple[Server, Path]
) -> None:
    code, _, err = run(cluster[1], *arguments)
    assert code == 64
    assert words in err
    assert len(err.splitlines()) <= 2


@pytest.mark.slow
def test_the_command_line_itself(tmp_path: Path) -> None:
    environment = clean_environment(KUBECONFIG=os.devnull)
    command = [sys.executable, "-m", "k8s", "list"]
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 64
    assert ran.stderr.startswith("k8s: no cluster")
