"""The Role that render.py writes for the verbs: every verb works with it, and every rule is needed."""

import _thread
import json
import re
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from k8s.cli.command import main
from k8s.cluster.wrapped_job import WRAPPER
from k8s.launchers import job_kinds
from k8s.plan.job_kind import JobKind
from tests.cluster_objects import COMPLETED, JOBSET, LABELS, Cluster, Run, fill
from tests.conftest import wait_for
from tests.ranks import free_port
from tests.rendering import CLUSTER, job, render
from tests.standin.server import Answer, Server

Allowed = set[tuple[str, str, str, str]]  # group, resource, verb, name or "" for any
WRITES = {"create", "patch", "delete"}


def granted(text: str, kinds: Iterable[str]) -> Allowed:
    """Return the rights that the roles of some kinds grant."""
    return {
        (group, resource, verb, name)
        for one in yaml.safe_load_all(text)
        if one["kind"] in kinds
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def by(allowed: Allowed, wanted: Allowed) -> Allowed:
    """Return the rights of the roles that allow the requests, as written: for one name or for any."""
    return {
        one
        for group, resource, verb, name in wanted
        for one in ((group, resource, verb, name), (group, resource, verb, ""))
        if one in allowed
    }


_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/lab(?=/))?/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?"
)


def asked(server: Server, method: str, target: str) -> Allowed:
    """Return the right that an API server requires for a request; None if everybody may make it."""
    parts = urlsplit(target)
    found = _PATH.fullmatch(parts.path)
    if found is None:  # discovery, the version
        return set()
    group, resource = found["group"] or "", found["resource"]
    name = found["name"] or ""
    if found["part"] in ("portforward", "exec"):
        return {(group, f"pods/{found['part']}", verb, name) for verb in ("get", "create")}
    if found["part"]:
        return {(group, f"{resource}/{found['part']}", "get", name)}
    verbs = {"GET": ["get"], "DELETE": ["delete"], "PATCH": ["patch"]}[method]
    if method == "GET" and not name:
        verbs = ["watch"] if "watch=true" in parts.query else ["list"]
    if method == "PATCH" and "force=" in parts.query and parts.path not in server.objects:
        verbs = ["patch", "create"]  # a server-side apply of a new object
    return {(group, resource, verb, name) for verb in verbs}


def a_job(launcher: str) -> dict[str, Any]:
    """Return a job file with every companion object of a job of this launcher."""
    values = job(
        name="digits",
        nodes=2 if launcher == "trainjob" else {"min": 2, "max": 4},
        trainer={"globalBatch": 48},
        network={"isolate": True},
        checkpoints={"claim": {"size": "1Gi"}},
        tensorboard={"image": "tensorboard:1"},
        metrics={"port": 9400, "dashboard": True, "alerts": True},
        disruptionBudget=True,
        mountJobFile=True,
    )
    if launcher in ("job", "jobset"):
        values["scheduling"] = {"gang": True, "schedulerName": "scheduler-plugins-scheduler"}
    return values


def interrupt_after(port: int) -> None:
    """Make one connection, and then interrupt, as a user does."""
    for _ in range(500):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(b"hello")
                connection.recv(100)
            break
        except OSError:
            time.sleep(0.02)
    _thread.interrupt_main()


def cancel_when_watched(server: Server, place: str) -> None:
    """End a wait once it watches, and leave the job as it was."""
    before = server.objects[place]
    wait_for(lambda: server.watches)
    mark = {"annotations": {"muster/cancelled": "2026-01-01T00:00:00+00:00"}}
    server.store(place, before | {"metadata": before["metadata"] | mark})
    server.store(place, before)


def stage(server: Server) -> None:
    """Create what a controller would make for a submitted job, and a namespace."""
    fill(server)
    server.remove(server.path(*JOBSET, "digits"))
    child = {"completions": 4, "parallelism": 4}
    server.put("batch/v1", "Job", {"metadata": {"name": "digits-node-0"}, "spec": child})
    board = {"app.kubernetes.io/instance": "digits", "app.kubernetes.io/component": "tensorboard"}
    metadata = {"name": "board", "labels": board}
    server.put("v1", "Pod", {"metadata": metadata, "status": {"phase": "Running"}})
    server.put("v1", "Namespace", {"metadata": {"name": "lab"}})


class Gate:
    """Answers like the API server to a user with the rights `allowed`; records `used` and `refused`."""

    def __init__(self, server: Server, launcher: str, allowed: Allowed) -> None:
        self.server, self.launcher, self.allowed = server, launcher, allowed
        self.scaling = False
        self.used: Allowed = set()
        self.refused: Allowed = set()

    def answer(self, method: str, target: str) -> Answer | None:
        wanted = asked(self.server, method, target)
        self.used |= by(self.allowed, wanted)
        lacking = {one for one in wanted if not by(self.allowed, {one})}
        self.refused |= lacking
        if lacking:
            return 403, {}, json.dumps({"message": f'User "jane" cannot {sorted(lacking)}'})
        patching = method == "PATCH" and "force=" not in target
        if self.launcher == "jobset" and patching and self.scaling and "/jobsets/" in target:
            return 422, {}, '{"message": "immutable"}'  # so that its Job is asked for as well
        return None


@pytest.mark.parametrize(
    "options", [[], ["--any-name", "--exec"]], ids=["one name", "any name, and exec"]
)
@pytest.mark.parametrize("launcher", CLUSTER)
def test_the_role_is_what_the_verbs_take(
    launcher: str,
    options: list[str],
    run: Run,
    cluster: Cluster,
    tmp_path: Path,
    capsys: Any,
) -> None:
    server, config = cluster
    file, rendered = tmp_path / "job.yaml", tmp_path / "rendered.yaml"
    kind = next(one for one in job_kinds() if one.launcher == launcher)
    values = a_job(launcher)
    if kind.suspend_field:  # it is put in a queue below
        values["scheduling"] = {"queue": "team", **values.get("scheduling", {})}
    file.write_text(json.dumps(values))
    rendered.write_text(render(a_job(launcher), launcher).text)
    assert main([str(file), "--launcher", launcher, "--rbac", "user:jane", *options]) == 0
    text = capsys.readouterr().out
    allowed = granted(text, ("Role", "ClusterRole"))
    gate = Gate(server, launcher, allowed)
    server.answer = gate.answer
    place = server.path(kind.api_version, kind.kind, "digits")

    def does(*arguments: str, code: int = 0) -> None:
        ended, _, err = run(config, *arguments)
        assert ended == code, err

    does("submit", str(rendered))
    does("submit", str(rendered))  # compares the pods
    submitted = server.objects[place]
    stage(server)
    server.store(place, submitted)
    does("doctor")
    threading.Thread(target=cancel_when_watched, args=(server, place), daemon=True).start()
    does("wait", "digits", code=143)
    for verb in (
        ["list"],
        ["gc"],
        ["status", "digits"],
        ["logs", "digits"],
        ["top", "digits"],
        ["why", "digits"],
    ):
        does(*verb)
    does("logs", "digits", "--save", str(tmp_path / "saved"))
    server.enter = lambda _, __: ["true"]
    does("profile", "digits", code=0 if "--exec" in options else 64)
    gate.scaling = True
    does("scale", "digits", "3", code=64 if launcher == "trainjob" else 0)
    gate.scaling = False
    does("suspend", "digits")
    does("resume", "digits")
    if kind.suspend_field:  # and as a job of a queue
        found = server.objects[place]
        queue = {"labels": LABELS | {"kueue.x-k8s.io/queue-name": "team"}}
        server.store(place, found | {"metadata": found["metadata"] | queue})
        owned = {"labels": {"kueue.x-k8s.io/job-uid": "uid-digits"}, "name": "w"}
        server.put("kueue.x-k8s.io/v1beta2", "Workload", {"metadata": owned})
    does("cancel", "digits")
    port = free_port()
    threading.Thread(target=interrupt_after, args=(port,), daemon=True).start()
    does("port-forward", "digits", "--port", str(port), code=130)
    for verb in (["delete", "digits"], ["list"], ["gc"]):  # the last two when there is no job
        does(*verb)
    check_use(gate, kind, any_name="--any-name" in options, executes="--exec" in options)


def check_use(gate: Gate, kind: JobKind, *, any_name: bool, executes: bool) -> None:
    """Check that the role was enough, and that every rule of it was needed."""
    versions = [*((one.api_version, one.kind) for one in job_kinds()), WRAPPER]
    other = {(version.split("/")[0], f"{name.lower()}s") for version, name in versions}
    here = {(kind.api_version.split("/")[0], f"{kind.kind.lower()}s")}
    elsewhere = {
        one for one in gate.refused if one[:2] in other - here and one[2] in ("get", "list")
    }
    if not executes:
        in_pods = {one for one in gate.refused if one[1] == "pods/exec"}
        assert {one[2] for one in in_pods} == {"get", "create"}
        elsewhere |= in_pods
    assert gate.refused <= elsewhere  # it checks whether it exists, and continues without it
    assert gate.allowed - gate.used == set()
    makes_names_up = {"pods/portforward", "pods/exec", "workloads"}
    unnamed = {one[1] for one in gate.allowed if one[2] in WRITES and not one[3]} - makes_names_up
    assert bool(unnamed) == any_name


def test_garbage_of_others_is_left(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **COMPLETED)

    def ask(method: str, _: str) -> Answer | None:
        message = 'User "jane" cannot delete resource "jobsets"'
        return (403, {}, json.dumps({"message": message})) if method == "DELETE" else None

    server.answer = ask
    code, _, err = run(config, "gc", "--older-than", "0")
    assert code == 0, err
    assert "cannot delete digits: not allowed: " in err


def test_configmaps_that_a_hash_names_have_no_name_in_the_role(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job(code={"path": "."})))
    assert main([str(file), "--launcher", "job", "--rbac", "user:jane"]) == 0
    allowed = granted(capsys.readouterr().out, ["Role"])
    assert ("", "configmaps", "patch", "") in allowed
    assert not any(
        one[1] == "networkpolicies" and one[2] in WRITES and not one[3] for one in allowed
    )


def test_the_role_is_enough_for_a_folder_on_a_claim(
    run: Run, cluster: Cluster, tmp_path: Path, capsys: Any
) -> None:
    server, config = cluster
    file, out = tmp_path / "job.yaml", tmp_path / "out"
    travels = {"path": ".", "via": "pvc", "pvc": "code"}
    file.write_text(json.dumps(job(code=travels, launcher="job")))
    assert main([str(file), "-o", str(out)]) == 0
    assert main([str(file), "--rbac", "user:jane"]) == 0
    gate = Gate(server, "job", granted(capsys.readouterr().out, ["Role"]))
    claim = server.path("v1", "PersistentVolumeClaim", "code")
    server.put("v1", "PersistentVolumeClaim", {"metadata": {"name": "code"}})

    def answer(method: str, target: str) -> Answer | None:
        pod = server.objects.get(server.path("v1", "Pod", "a-job-code"))
        if pod is not None and "status" not in pod:
            server.change(pod, status={"phase": "Running"})
        return gate.answer(method, target)

    server.answer = answer
    server.enter = lambda _, __: ["true"]
    code, _, err = run(config, "submit", str(out / "job.yaml"))
    assert code == 0, err
    assert ("GET", claim) in server.requests
    pods = {one for one in gate.allowed if one[1] in ("pods", "pods/exec") and one[2] != "list"}
    assert {one[3] for one in pods} == {"a-job-code"}
    assert pods - gate.used == set()


def test_who_may_is_said(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job(namespace="research")))
    bindings: set[str] = set()
    for who, subject in {
        "user:jane@lab.org": {"kind": "User", "name": "jane@lab.org", "apiGroup": API},
        "user:jane-lab/org": {"kind": "User", "name": "jane-lab/org", "apiGroup": API},
        "user:lab": {"kind": "User", "name": "lab", "apiGroup": API},
        "user:Ж": {"kind": "User", "name": "Ж", "apiGroup": API},
        "group:lab": {"kind": "Group", "name": "lab", "apiGroup": API},
        "serviceaccount:ci:bot": {"kind": "ServiceAccount", "name": "bot", "namespace": "ci"},
        "serviceaccount:cd:bot": {"kind": "ServiceAccount", "name": "bot", "namespace": "cd"},
    }.items():
        assert main([str(file), "--launcher", "job", "--rbac", who]) == 0
        role, binding, doctor, everywhere = yaml.safe_load_all(capsys.readouterr().out)
        name = "muster-job-" + job()["name"]
        assert role["metadata"] == {"name": name, "namespace": "research"}
        assert binding["subjects"] == everywhere["subjects"] == [subject]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert "namespace" not in doctor["metadata"]
        # with one name, a second binding would take the rights from the first user
        assert not {binding["metadata"]["name"], everywhere["metadata"]["name"]} & bindings
        bindings |= {binding["metadata"]["name"], everywhere["metadata"]["name"]}
        assert not re.search(r"[/%]|-$", binding["metadata"]["name"])


API = "rbac.authorization.k8s.io"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rbac", "jane"], "--rbac jane: not user:NAME"),
        (["--rbac", "serviceaccount:bot"], "serviceaccount:NAMESPACE:NAME"),
        (["--rbac", "user:jane", "--launcher", "docker"], "docker runs without a cluster"),
        (["--any-name"], "--any-name: goes with --rbac"),
        (["--exec"], "--exec: goes with --rbac"),
    ],
)
def test_who_it_is_for_must_be_clear(
    options: list[str], words: str, tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job(launcher="job")))
    assert main([str(file), *options]) == 64
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""
