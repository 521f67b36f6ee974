"""What the verbs say of a cluster that cannot answer or breaks off: one line and 69, in time."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k8s.cluster import api, logs
from k8s.cluster.connect import connect
from k8s.cluster.watch import changes
from tests.apiserver import Answer, Server, kubeconfig
from tests.cluster_objects import COMPLETED, JOBSET, RUNNING, Run, fill, golden, jobset
from trainer.exits import Fault

Cluster = tuple[Server, Path]

VERBS = {
    "submit": ["submit", str(golden("jobset"))],
    "status": ["status", "digits"],
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
    "delete": ["delete", "digits"],
    "list": ["list"],
    "gc": ["gc"],
    "doctor": ["doctor"],
}
BAD: dict[str, Answer] = {
    "500": (500, {}, '{"message": "etcd is away"}'),
    "429": (429, {"Retry-After": "1"}, "slow down"),
    "garbage": (200, {}, "<html>a proxy</html>"),
    "other JSON": (200, {}, '{"hello": "world"}'),
}


def test_every_verb_is_in_the_table() -> None:
    from k8s.__main__ import app

    names = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
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
    assert len(err.splitlines()) == 2, err  # where, and what went wrong
    assert err.endswith("(exit 69)\n")
    assert time.monotonic() - began < 20  # a busy machine's


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("doctor", "port-forward")])
def test_a_cluster_that_is_lost_halfway_is_69_at_every_request(
    verb: str, run: Run, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config = cluster
    monkeypatch.chdir(tmp_path)
    elastic = {"name": "PET_NNODES", "value": "2:4"}
    template = {"spec": {"containers": [{"env": [elastic]}]}}
    spec = {"completions": 2, "parallelism": 2, "template": template}
    for last in itertools.count(1):
        server.objects.clear()
        server.requests.clear()
        fill(server, **(COMPLETED if verb in ("wait", "gc") else RUNNING))
        found = jobset(
            {"replicatedJobs": [{"name": "node", "template": {"spec": spec}}]}, **RUNNING
        )
        if verb == "scale":
            server.put(*JOBSET, found)
        server.answer = lambda _, __, last=last: (
            BAD["500"] if len(server.requests) >= last else None
        )
        code, _, err = run(config, "--timeout", "0.3", *VERBS[verb])
        assert "Traceback" not in err
        if len(server.requests) < last:
            break
        # a log that cannot be had is said so in its place, and the others are shown
        assert code == 69 or (code == 0 and verb in ("logs", "rank")), err
    assert code == 0
    assert last > 3


def test_a_request_is_tried_again_after_429_and_5xx(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    told = iter([BAD["429"], BAD["500"]])
    server.answer = lambda _, __: next(told, None)
    began = time.monotonic()
    assert run(config, "status", "digits")[0] == 0
    assert time.monotonic() - began >= 1.5  # the second that was asked for, and a pause of our own


def test_the_pauses_double_and_never_undercut_what_was_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config = cluster
    answers = [BAD["500"], BAD["500"], (429, {"Retry-After": "7"}, ""), BAD["500"]]
    answers += [(503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "")]  # then our own
    told = iter(answers)
    server.answer = lambda _, __: next(told, (200, {}, "{}"))
    pauses: list[float] = []
    monkeypatch.setattr("k8s.cluster.api.time.sleep", pauses.append)
    connected = connection(config, timeout=60)
    assert api.call(connected, "GET", "/x") == {}
    least = [0.5, 1, 7, 4, 8]
    assert all(low <= pause <= 1.4 * low for low, pause in zip(least, pauses, strict=True)), pauses


def connection(config: Path, *, timeout: float) -> api.Cluster:
    from kubernetes import client
    from kubernetes import config as loader

    made = client.Configuration()
    loader.load_kube_config(config_file=str(config), client_configuration=made)
    made.retries = False
    return api.Cluster(client.ApiClient(made), "lab", "here", timeout)


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (403, 'jobs is forbidden: User "jane" cannot list resource', "--rbac user:NAME"),
        (403, "exceeded quota: pods=2", "the cluster refuses it"),
        (401, "Unauthorized", "not allowed"),
        (409, "conflict with other manager", "the cluster refuses it"),
        (500, "failed to create typed patch object (/x): .spec.y", "the cluster refuses it"),
    ],
)
def test_a_refusal_is_not_tried_again(
    status: int, message: str, words: str, run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    server.answer = lambda method, _: (
        (status, {}, json.dumps({"message": message})) if method == "PATCH" else None
    )
    code, _, err = run(config, "submit", str(golden("job")))
    assert code == 64
    assert words in err
    assert message in err
    assert len([1 for method, _ in server.requests if method == "PATCH"]) == 1


def watched(
    server: Server, config: Path, act: Callable[[], None], *, until: int, seconds: float = 20
) -> list[Any]:
    """Return the restarts that a watch of the job tells, None when it is gone, up to `until` of them."""
    deadline = time.monotonic() + seconds
    seen: list[Any] = []
    actor = threading.Thread(target=act)
    for found in changes(connection(config, timeout=5), *JOBSET, "digits", deadline=deadline):
        if not seen:
            actor.start()
        seen.append(found["status"]["restarts"] if found else None)
        if len(seen) == until:
            break
    actor.join()
    return seen


def attached(server: Server, *, times: int = 1) -> None:
    """Wait until so many watches have been asked for, and the last is there."""
    end = time.monotonic() + 10
    asked = 0
    while (asked < times or not server.watches) and time.monotonic() < end:
        asked = sum("watch=true" in path for _, path in server.requests)
        time.sleep(0.01)


def test_a_watch_tells_every_change_and_the_end(cluster: Cluster) -> None:
    server, config = cluster

    def act() -> None:
        attached(server)
        for restarts in (1, 2):
            fill(server, restarts=restarts)
        server.remove(server.path(*JOBSET, "digits"))

    fill(server, restarts=0)
    assert watched(server, config, act, until=4) == [0, 1, 2, None]
    assert len([1 for _, path in server.requests if "/jobsets?" in path]) == 2  # a list, a watch


def test_a_watch_goes_on_where_it_broke_off(cluster: Cluster) -> None:
    server, config = cluster

    def act() -> None:
        attached(server)
        fill(server, restarts=1)
        server.hang_up()
        attached(server, times=2)
        fill(server, restarts=2)

    fill(server, restarts=0)
    assert watched(server, config, act, until=3) == [0, 1, 2]
    lists = [path for _, path in server.requests if "/jobsets?" in path and "watch" not in path]
    assert len(lists) == 1  # not listed again


@pytest.mark.parametrize("how", ["in the stream", "as the answer"])
def test_a_watch_begins_anew_when_its_version_is_forgotten(how: str, cluster: Cluster) -> None:
    server, config = cluster
    fill(server, restarts=0)

    def act() -> None:
        attached(server)
        if how == "as the answer":
            told = iter([(410, {}, '{"message": "too old"}')])
            server.answer = lambda _, path: next(told, None) if "watch" in path else None
            server.hang_up()
        server.forget()
        attached(server, times=3 if how == "as the answer" else 2)
        fill(server, restarts=6)

    seen = watched(server, config, act, until=3)
    assert (seen[0], seen[-1]) == (0, 6)
    lists = [path for _, path in server.requests if "/jobsets?" in path and "watch" not in path]
    assert len(lists) == 2


def test_a_watch_of_garbage_is_69(cluster: Cluster) -> None:
    server, config = cluster
    fill(server, restarts=0)
    server.answer = lambda _, path: (200, {}, "<html>\n") if "watch=true" in path else None
    with pytest.raises(Fault, match="no JSON") as caught:
        list(
            changes(connection(config, timeout=5), *JOBSET, "digits", deadline=time.monotonic() + 9)
        )
    assert caught.value.code == 69


def test_a_list_begins_anew_when_its_pages_are_forgotten(cluster: Cluster) -> None:
    from k8s.cluster.objects import listed

    server, config = cluster
    page = {"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "next"}}
    told = iter([(200, {}, json.dumps(page)), (410, {}, "{}"), (200, {}, json.dumps(page))])
    server.answer = lambda _, __: next(told, None)
    found = listed(connection(config, timeout=5), "/api/v1/namespaces/lab/pods", {})
    assert found == [{"metadata": {"name": "a"}}]
    assert ["continue=next" in path for _, path in server.requests] == [False, True, False, True]


def test_a_followed_log_goes_on_where_it_broke_off(cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    name = "digits-node-0-0"
    server.logs[name] = "one\ntwo\nthree\n"
    whole = server.respond("GET", f"/x/{name}/log?timestamps=true", None)[1]
    assert isinstance(whole, str)
    # cut within the second line: the length promises more than comes
    lying = {"Content-Length": "9999", "Connection": "close"}
    told = iter([(200, lying, whole[: whole.index("two") + 1])])
    server.answer = lambda _, path: next(told, None) if "/log" in path else None
    connected = connection(config, timeout=5)
    from k8s.cluster import jobs

    lines: list[str] = []
    job = jobs.look(connected, "digits")
    server.put(*JOBSET, jobset(**COMPLETED))
    logs.follow(
        connected,
        job,
        lines.append,
        query={"follow": "true"},
        wanted=lambda pod: pod.name == name,
    )
    assert lines == ["[node 0] one", "[node 0] two", "[node 0] three"]


def test_a_log_that_never_pauses_does_not_keep_the_others_out(cluster: Cluster) -> None:
    from k8s.cluster import jobs

    server, config = cluster
    fill(server, **COMPLETED)
    chatty = "digits-node-0-0"
    server.logs[chatty] = "again\n" * 400_000
    connected = connection(config, timeout=5)
    found = jobs.pods(connected, jobs.look(connected, "digits"))
    following = logs.Following(connected, query={})
    following.add(found[0])
    shown: list[str] = []
    following.drain(shown.append, seconds=0.05)
    assert len(shown) < 400_000
    following.drain(shown.append, seconds=60)
    following.drain(shown.append, seconds=0)
    following.close()
    assert len(shown) == 400_000


def test_no_namespace_is_guessed(run: Run, tmp_path: Path) -> None:
    config = kubeconfig(tmp_path, "http://127.0.0.1:1", namespace=None)
    code, _, err = run(config, "list")
    assert code == 64
    assert "context test names no namespace; say which: --namespace NAME" in err


def test_a_pod_of_the_cluster_needs_no_kubeconfig(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pod finds: a token, a namespace, an authority; the address by the environment."""
    server, _ = cluster
    for name, words in (("namespace", "lab\n"), ("token", "t"), ("ca.crt", "x")):
        (tmp_path / name).write_text(words)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.http.server_port))
    loader = "kubernetes.config.incluster_config.SERVICE_"
    monkeypatch.setattr(f"{loader}TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{loader}CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr("k8s.cluster.connect._SERVICE_ACCOUNT", str(tmp_path))
    nowhere = str(tmp_path / "none")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", nowhere)
    found = connect(context=None, namespace=None)
    assert (found.namespace, found.where) == ("lab", "this pod's cluster, namespace lab")
    assert found.client.configuration.host == f"https://127.0.0.1:{server.http.server_port}"
    (tmp_path / "namespace").unlink()
    with pytest.raises(Fault, match="names no namespace"):
        connect(context=None, namespace=None)


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
    arguments: list[str], words: str, run: Run, cluster: Cluster
) -> None:
    code, _, err = run(cluster[1], *arguments)
    assert code == 64
    assert words in err
    assert len(err.splitlines()) <= 2
