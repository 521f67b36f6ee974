"""What the verbs say if a cluster cannot answer or a request is wrong: one line, in time."""

import json
import re
import time
from functools import partial
from pathlib import Path

import pytest

from k8s.cluster.client import api
from tests.cluster_objects import (
    COMPLETED,
    JOBSET,
    RUNNING,
    Cluster,
    Run,
    connection,
    fill,
    golden,
    jobset,
    refuse,
)
from tests.standin.http import kubeconfig
from tests.standin.server import Answer, Server

VERBS = {
    "submit": ["submit", str(golden("jobset"))],
    "status": ["status", "digits"],
    "why": ["why", "digits"],
    "report": ["report", "digits"],
    "logs": ["logs", "digits"],
    "save": ["logs", "digits", "--save", "saved"],
    "rank": ["logs", "digits", "--rank", "1"],
    "wait": ["wait", "digits"],
    "suspend": ["suspend", "digits"],
    "resume": ["resume", "digits"],
    "cancel": ["cancel", "digits"],
    "scale": ["scale", "digits", "3"],
    "top": ["top", "digits", "--once"],
    "port-forward": ["port-forward", "digits", "--port", "0"],
    "profile": ["profile", "digits"],
    "sync": ["sync", "digits"],
    "delete": ["delete", "digits"],
    "list": ["list"],
    "gc": ["gc"],
    "doctor": ["doctor"],
}
# They check whether objects exist, or open a WebSocket, and have separate tests.
OTHER_WAYS = ("doctor", "port-forward", "profile", "sync")
BAD: dict[str, Answer] = {
    "500": (500, {}, '{"message": "etcd is away"}'),
    "429": (429, {"Retry-After": "1"}, "slow down"),
    "garbage": (200, {}, "<html>a proxy</html>"),
    "other bytes": (200, {}, '{"items": "\udcff"}'),  # not UTF-8
    "other JSON": (200, {}, '{"hello": "world"}'),
}


def _fail_from(server: Server, number: int, *_: str) -> Answer | None:
    return BAD["500"] if len(server.requests) >= number else None


def test_every_verb_is_in_the_table() -> None:
    from k8s.cli.verbs import app

    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {arguments[0] for arguments in VERBS.values()} == names


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", [*BAD, "closed"])
def test_a_cluster_that_does_not_answer_is_one_line_and_69(
    verb: str, kind: str, run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    server, config = cluster
    if kind == "closed":
        config = kubeconfig(tmp_path, "http://127.0.0.1:1")
    else:
        server.answer = lambda _, __: BAD[kind]
    began = time.monotonic()
    code, out, err = run(config, "--timeout", "0.4", *VERBS[verb])
    assert code == 69
    assert out == ""
    assert len(err.splitlines()) == 2, err  # where and what went wrong
    assert err.endswith("(exit 69)\n")
    assert time.monotonic() - began < 20  # for a busy machine


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in OTHER_WAYS])
def test_a_cluster_that_is_lost_halfway_is_69_at_every_request(
    verb: str, run: Run, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config = cluster
    monkeypatch.chdir(tmp_path)
    elastic = {"name": "PET_NNODES", "value": "2:4"}
    template = {"spec": {"containers": [{"env": [elastic]}]}}
    spec = {"completions": 2, "parallelism": 2, "template": template}
    found = jobset({"replicatedJobs": [{"name": "node", "template": {"spec": spec}}]}, **RUNNING)

    def call(timeout: str) -> tuple[int, str]:
        server.objects.clear()
        server.requests.clear()
        fill(server, **(COMPLETED if verb in ("wait", "gc") else RUNNING))
        if verb == "scale":
            server.put(*JOBSET, found)
        code, _, err = run(config, "--timeout", timeout, *VERBS[verb])
        assert "Traceback" not in err
        return code, err

    assert call("30")[0] == (65 if verb == "report" else 0)  # these logs have no event
    count = len(server.requests)
    assert count > 2
    for last in range(1, count + 1):
        server.answer = partial(_fail_from, server, last)
        code, err = call("0.3")
        # a log that cannot be read is reported in its place, and the other logs are shown
        assert code == 69 or (code == 0 and verb in ("logs", "rank", "why")), err


@pytest.mark.slow
def test_a_request_is_tried_again_after_429_and_5xx(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    listed = iter([BAD["429"], BAD["500"]])
    server.answer = lambda _, __: next(listed, None)
    began = time.monotonic()
    assert run(config, "status", "digits")[0] == 0
    assert time.monotonic() - began >= 1.5  # the server's second, and our own pause


def test_the_pauses_double_and_never_undercut_what_was_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config = cluster
    answers = [BAD["500"], BAD["500"], (429, {"Retry-After": "7"}, ""), BAD["500"]]
    answers += [(503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "")]  # then our own pause
    listed = iter(answers)
    server.answer = lambda _, __: next(listed, (200, {}, "{}"))
    pauses: list[float] = []
    monkeypatch.setattr("k8s.cluster.client.api.time.sleep", pauses.append)
    connected = connection(config, timeout=60)
    assert api.call(connected, "GET", "/x") == {}
    least = [0.5, 1, 7, 4, 8]
    assert all(low <= pause <= 1.4 * low for low, pause in zip(least, pauses, strict=True)), pauses


def test_a_user_who_may_not_read_events_gets_everything_else(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    said = 'events is forbidden: User "jane" cannot list resource "events"'
    refuse(server, 403, said, at="/events")
    code, out, _ = run(config, "why", "digits")
    assert code == 0
    assert said in out.splitlines()[-1]
    code, out, _ = run(config, "status", "digits", "--json")
    assert code == 0
    assert said in json.loads(out)["warnings"][0]
    code, _, err = run(config, "logs", "digits", "--save", str(tmp_path))
    assert code == 64
    assert said in err
    saved = {path.name for path in tmp_path.glob("*.*") if path.suffix in (".log", ".yaml")}
    assert saved >= {"job.yaml", "digits-node-0-0.log", "digits-node-0-1.log"}


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (403, 'jobs is forbidden: User "jane" cannot list resource', "--rbac user:NAME"),
        (403, "exceeded quota: pods=2", "the cluster refuses the request"),
        (401, "Unauthorized", "not allowed"),
        (409, "conflict with other manager", "the cluster refuses the request"),
        (
            500,
            "failed to create typed patch object (/x): .spec.y",
            "the cluster refuses the request",
        ),
    ],
)
def test_a_refusal_is_not_tried_again(
    status: int, message: str, words: str, run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    refuse(server, status, message, method="PATCH")
    code, _, err = run(config, "submit", str(golden("job")))
    assert code == 64
    assert words in err
    assert message in err
    assert len([1 for method, _ in server.requests if method == "PATCH"]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stats"], "No such command 'stats'"),
        (["status"], "Missing argument"),
        (["submit", "/nowhere.yaml"], "/nowhere.yaml: No such file"),
        (["--context", "moon", "list"], "--context moon"),
        (["gc", "--older-than", "1e300"], "Invalid value for '--older-than'"),
        (["status", "../services/digits"], "no muster job '../services/digits' here"),
        (["wait", ""], "no muster job '' here"),  # an empty variable of a script
        (["status", "digits?x"], "no muster job 'digits?x' here"),
    ],
)
def test_wrong_words_are_one_line_and_64(
    arguments: list[str], words: str, run: Run, cluster: Cluster
) -> None:
    fill(cluster[0], **RUNNING)
    code, _, err = run(cluster[1], *arguments)
    assert code == 64
    assert words in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: batch/v1\nkind: Job",
        "apiVersion: batch/v1\nkind: Job\nmetadata: {}",
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: 5}",
        "apiVersion: 5\nkind: Job\nmetadata: {name: a}",
        "kind: [a]\napiVersion: {}",
        "a: 0x_",
        "a: " + "[" * 100_000,
        "words",
    ],
)
def test_what_is_no_manifest_is_one_line_and_64(
    text: str, run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    code, _, err = run(cluster[1], "submit", str(file))
    assert code == 64
    assert re.search(f"{re.escape(str(file))}(:[0-9]+:[0-9]+)?: (not |nested too deeply)", err)
    assert len(err.splitlines()) == 1
