"""Watches, lists and logs that continue after a break, or start again."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from k8s.cluster import jobs
from k8s.cluster.client.objects import listed
from k8s.cluster.client.watch import changes
from k8s.cluster.observe import logs
from tests.cluster_objects import (
    COMPLETED,
    JOBSET,
    RUNNING,
    Cluster,
    connection,
    fill,
    golden,
    jobset,
    pod,
)
from tests.conftest import run_command
from tests.standin.server import Answer, Server
from trainer.config.exits import Fault


def watched(server: Server, config: Path, act: Callable[[], None], *, until: int) -> list[Any]:
    """Return the restarts of the job that a watch reports (None: deleted), at most `until` reports."""
    deadline = time.monotonic() + 20
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
    """Wait until so many watches were requested and the last one is open."""
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
            said: Iterator[Answer] = iter([(410, {}, '{"message": "too old"}')])
            server.answer = lambda _, path: next(said, None) if "watch" in path else None
            server.hang_up()
        server.forget()
        attached(server, times=3 if how == "as the answer" else 2)
        fill(server, restarts=6)

    seen = watched(server, config, act, until=3)
    assert (seen[0], seen[-1]) == (0, 6)
    lists = [path for _, path in server.requests if "/jobsets?" in path and "watch" not in path]
    assert len(lists) == 2


@pytest.mark.parametrize(
    "answer", [(410, {}, "{}"), (200, {}, '{"type": "ERROR", "object": {"code": 500}}\n')]
)
def test_a_watch_that_always_fails_is_not_asked_for_without_pause(
    answer: Answer, cluster: Cluster
) -> None:
    server, config = cluster
    fill(server, restarts=0)
    server.answer = lambda _, path: answer if "watch=true" in path else None
    connected = connection(config, timeout=5)
    began = time.monotonic()
    found = changes(connected, *JOBSET, "digits", deadline=began + 60)
    assert len(list(islice(found, 6))) == 6
    assert time.monotonic() - began > 0.2  # five pauses of 0.05, see conftest.py
    # It ends at its deadline, after one look at least.
    assert list(changes(connected, *JOBSET, "digits", deadline=time.monotonic() + 0.1))


def test_a_watch_of_garbage_is_69(cluster: Cluster) -> None:
    server, config = cluster
    fill(server, restarts=0)
    server.answer = lambda _, path: (200, {}, "<html>\n") if "watch=true" in path else None
    with pytest.raises(Fault, match="not JSON") as caught:
        list(
            changes(connection(config, timeout=5), *JOBSET, "digits", deadline=time.monotonic() + 9)
        )
    assert caught.value.code == 69


def test_a_list_begins_anew_when_its_pages_are_forgotten(cluster: Cluster) -> None:
    server, config = cluster
    page = {"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "next"}}
    said: Iterator[Answer] = iter(
        [(200, {}, json.dumps(page)), (410, {}, "{}"), (200, {}, json.dumps(page))]
    )
    server.answer = lambda _, __: next(said, None)
    found = listed(connection(config, timeout=5), "/api/v1/namespaces/lab/pods", {})
    assert found == [{"metadata": {"name": "a"}}]
    assert ["continue=next" in path for _, path in server.requests] == [False, True, False, True]


def test_a_followed_log_goes_on_where_it_broke_off(cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **RUNNING)
    name = "digits-node-0-0"
    server.logs[name] = "one\ntwo\nthree\n"
    whole = b"".join(server.log(f"/x/{name}", {"timestamps": "true"})).decode()
    # cut within the second line: Content-Length is more than what is sent
    lying = {"Content-Length": "9999", "Connection": "close"}
    said: Iterator[Answer] = iter([(200, lying, whole[: whole.index("two") + 1])])
    server.answer = lambda _, path: next(said, None) if "/log" in path else None
    connected = connection(config, timeout=5)
    lines: list[str] = []
    job = jobs.get_job(connected, "digits")
    server.put(*JOBSET, jobset(**COMPLETED))
    logs.follow(
        connected,
        job,
        lines.append,
        query={"follow": "true"},
        selection=logs.Selection(nodes=frozenset({0})),
    )
    assert lines == ["[node 0] one", "[node 0] two", "[node 0] three"]


def test_what_the_kubelet_writes_into_a_followed_log_is_shown_whole(cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **COMPLETED)
    problem = "failed to create fsnotify watcher: too many open files"
    whole = f"2026-01-01T00:00:00.000000001Z one\n{problem}\n"
    server.answer = lambda _, path: (200, {}, whole) if "/log" in path else None
    connected = connection(config, timeout=5)
    lines: list[str] = []
    job = jobs.get_job(connected, "digits")
    chosen = logs.Selection(nodes=frozenset({0}))
    logs.follow(connected, job, lines.append, query={"follow": "true"}, selection=chosen)
    assert lines == ["[node 0] one", f"[node 0] {problem}"]


def test_a_log_that_never_pauses_does_not_keep_the_others_out(cluster: Cluster) -> None:
    server, config = cluster
    fill(server, **COMPLETED)
    chatty = "digits-node-0-0"
    server.logs[chatty] = "again\n" * 400_000
    connected = connection(config, timeout=5)
    found = jobs.pods(connected, jobs.get_job(connected, "digits"))
    follower = logs.LogFollower(connected, query={})
    follower.add(found[0])
    shown: list[str] = []
    follower.drain(shown.append, seconds=0.05)
    assert len(shown) < 400_000
    follower.drain(shown.append, seconds=60)
    follower.drain(shown.append, seconds=0)
    follower.close()
    assert len(shown) == 400_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "code"),
    [("logs digits", 0), ("status digits --all", 0), ("submit FILE --follow", 69)],
)
def test_a_reader_that_has_enough_is_no_error(verb: str, code: int, cluster: Cluster) -> None:
    """Only the job's own end may make `submit --follow` end with 0."""
    server, config = cluster
    fill(server, **RUNNING)
    for node in range(2, 300):
        server.put("v1", "Pod", pod(f"digits-node-0-{node}", node, phase="Running"))
    server.put("v1", "Pod", pod("digits-ddp-0", 0, job="digits-ddp", phase="Failed"))
    for name in ("digits-node-0-0", "digits-ddp-0"):
        server.logs[name] = "a line of the log\n" * 20_000
    command = f"{sys.executable} -m k8s {verb.replace('FILE', str(golden('jobset')))}"
    done = run_command(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -n 1"],
        env={"KUBECONFIG": str(config)},
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert "Error" not in done.stderr
    assert ("the jobs go on" in done.stderr) == (code != 0)
