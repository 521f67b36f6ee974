"""Several jobs submitted together, with an API that stores and a controller that ends them in turn."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli import command
from tests.cluster_objects import COMPLETED, FAILED, JOBSET, Cluster, Run, interrupt, pod, refuse
from tests.conftest import ROOT, in_thread
from tests.standin.server import Server

EXAMPLE = ROOT / "k8s" / "jobs" / "16-matrix.yaml"


@pytest.fixture
def files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the manifests of the example's five jobs, of which two may run at a time."""
    folder = tmp_path / "sweep"
    assert command.main([str(EXAMPLE), "--each", "--launcher", "jobset", "-o", str(folder)]) == 0
    capsys.readouterr()
    return sorted(map(str, folder.glob("*/jobset.yaml")))


def name_of(file: str) -> str:
    return Path(file).parent.name


def jobs_in(server: Server) -> dict[str, Any]:
    with server.changed:
        return {one["metadata"]["name"]: one for one in server.all(*JOBSET)}


def running(server: Server) -> list[str]:
    return [name for name, one in jobs_in(server).items() if not one.get("status")]


def end(server: Server, name: str, status: Any = COMPLETED) -> None:
    with server.changed:
        path = server.path(*JOBSET, name)
        server.store(path, server.objects[path] | {"status": status})


@contextmanager
def controller(
    server: Server, ends: Callable[[str], Any] = lambda _: COMPLETED
) -> Iterator[list[list[str]]]:
    """End a job when both places are taken, or when all five were made, unless `ends` has None for it.

    Yield which jobs ran, at each check.
    """
    seen, made = list[list[str]](), set[str]()

    def look(stop: threading.Event) -> None:
        while not stop.wait(0.1):  # another job could start now, but must not
            seen.append(running(server))
            made.update(jobs_in(server))
            begun = any(not name.startswith("try ") for name in written(server))
            if not begun or (len(seen[-1]) < 2 and len(made) < 5):
                continue
            ended = ((name, ends(name)) for name in seen[-1])
            for name, status in itertools.islice((one for one in ended if one[1]), 1):
                finish(server, name, status)

    with in_thread(look):
        yield seen


def finish(server: Server, name: str, status: Any) -> None:
    server.logs[f"{name}-0"] = f"trained {name}\n"
    server.put("v1", "Pod", pod(f"{name}-0", 0, job=name, phase="Succeeded"))
    end(server, name, status)


def written(server: Server) -> list[str]:
    """Return the kind and name of each applied object in order; dry runs are marked."""
    return [
        ("try " if "dryRun" in path else "") + path.partition("?")[0].rpartition("/")[2]
        for method, path in [*server.requests]
        if method == "PATCH" and "/jobsets/" in path
    ]


@pytest.mark.parametrize("option", ["--wait", "--follow"])
def test_as_many_as_may_run_and_the_next_when_one_has_ended(
    option: str, files: list[str], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    failing = name_of(files[2])
    with controller(server, lambda name: FAILED if name == failing else COMPLETED) as seen:
        code, out, err = run(config, "submit", *files, option)
    names = [name_of(file) for file in files]
    assert code == 70  # of the job that failed
    assert max(map(len, seen)) == 2
    # All were tried before the first was made; then in the order of the command line.
    assert written(server)[:5] == [f"try {name}" for name in names]
    assert sorted(written(server)[5:]) == names
    assert {*written(server)[5:7]} == {*names[:2]}
    assert f"{failing}: failed: FailedJobs" in err
    assert [f"{name}: exit {70 * (name == failing)}" in err for name in names] == [True] * 5
    lines = [f"[{name}] [node 0 rank 0] trained {name}" for name in names]
    shown = [line.replace("[node 0] ", "[node 0 rank 0] ") for line in out.splitlines()]
    assert sorted(shown) == (lines if option == "--follow" else [])


def test_all_or_none(files: list[str], run: Run, cluster: Cluster) -> None:
    server, config = cluster
    last = f"/jobsets/{name_of(files[-1])}"
    refuse(server, 422, "spec: forbidden", method="PATCH", at=last)
    code, _, err = run(config, "submit", *files, "--wait")
    assert (code, "422: spec: forbidden" in err) == (64, True)
    assert server.objects == {}


def test_what_is_held_back_needs_one_who_waits(
    files: list[str], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    code, _, err = run(config, "submit", *files)
    assert (code, server.objects) == (64, {})
    assert (
        "matrix.maxParallel=2: 5 jobs cannot all run at the same time; add --wait or --follow (exit 64)"
    ) in err
    assert run(config, "submit", *files[:2])[0] == 0
    assert sorted(jobs_in(server)) == [name_of(file) for file in files[:2]]


def test_without_a_limit_all_are_there_at_once(
    files: list[str], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    for file in files:
        *others, job = yaml.safe_load_all(Path(file).read_text(encoding="utf-8"))
        del job["metadata"]["annotations"]
        Path(file).write_text(yaml.safe_dump_all([*others, job]), encoding="utf-8")
    assert run(config, "submit", *files)[0] == 0
    assert sorted(jobs_in(server)) == [name_of(file) for file in files]


@pytest.mark.parametrize("text", ["0", "many", "-1"])
def test_a_limit_that_is_none(text: str, files: list[str], run: Run, cluster: Cluster) -> None:
    server, config = cluster
    file = Path(files[1])
    changed = file.read_text(encoding="utf-8").replace('parallel: "2"', f'parallel: "{text}"')
    file.write_text(changed, encoding="utf-8")
    code, _, err = run(config, "submit", *files, "--wait")
    assert (code, server.objects) == (64, {})
    said = f"job {name_of(files[1])}: annotation muster/max-parallel='{text}': must be 1 or more"
    assert said in err


def test_one_job_in_two_files(files: list[str], run: Run, cluster: Cluster, tmp_path: Path) -> None:
    server, config = cluster
    other = tmp_path / "other.yaml"
    other.write_text(Path(files[0]).read_text(encoding="utf-8"), encoding="utf-8")
    code, _, err = run(config, "submit", *files, str(other), "--wait")
    assert (code, server.objects) == (64, {})
    assert f"{other}: job {name_of(files[0])} is also in {files[0]}; submit one of them" in err


def test_a_refused_call_replaces_none(
    files: list[str], run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    server, config = cluster
    for file in files:
        assert run(config, "submit", file)[0] == 0
    before = [*server.objects]
    code, _, err = run(config, "submit", *files, "--replace")
    assert (code, "matrix.maxParallel=2" in err) == (64, True), err
    other = tmp_path / "other.yaml"
    other.write_text(Path(files[0]).read_text(encoding="utf-8"), encoding="utf-8")
    code, _, err = run(config, "submit", files[0], str(other), "--replace", "--wait")
    assert (code, "submit one of them" in err) == (64, True), err
    taken = files[1].replace("jobset.yaml", "trainjob.yaml")
    arguments = [
        str(EXAMPLE),
        "--each",
        "--launcher",
        "trainjob",
        "-o",
        str(Path(taken).parents[1]),
    ]
    assert command.main([*arguments, "--set", "faults.deadline=", "--set", "faults.ttl="]) == 0
    code, _, err = run(config, "submit", files[0], taken, "--replace", "--wait")
    assert (code, "already exists, on launcher jobset" in err) == (64, True), err
    assert [*server.objects] == before


def test_given_again_it_goes_on(files: list[str], run: Run, cluster: Cluster) -> None:
    """Of five jobs, one has succeeded, one has failed, and the last is running and takes one place."""
    server, config = cluster
    for file in (files[0], files[1], files[4]):
        assert run(config, "submit", file)[0] == 0
    end(server, name_of(files[0]))
    end(server, name_of(files[1]), FAILED)
    server.requests.clear()
    with controller(server) as seen:
        code, _, err = run(config, "submit", *files, "--wait")
    assert code == 70
    assert f"job {name_of(files[0])} already exists and has ended (succeeded)" in err
    names = [name_of(file) for file in files]
    assert written(server)[:5] == [f"try {name}" for name in names]
    assert sorted(written(server)[5:]) == [names[2], names[3], names[4]]
    assert {*written(server)[5:7]} == {names[4], names[2]}  # the running job comes first
    assert max(map(len, seen)) == 2
    code, _, err = run(config, "submit", *files, "--wait")
    assert code == 64
    assert "all 5 jobs already exist and have ended; delete those that should run again" in err


def test_a_job_that_cannot_be_watched_keeps_its_place(
    files: list[str], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    lost = name_of(files[0])

    def answer(method: str, path: str) -> tuple[int, dict[str, str], str] | None:
        gone = method == "GET" and f"/jobsets/{lost}" in path and lost in jobs_in(server)
        return (500, {}, json.dumps({"message": "etcd is away"})) if gone else None

    server.answer = answer
    with controller(server, lambda name: None if name == lost else COMPLETED) as seen:
        code, _, err = run(config, "--timeout", "1", "submit", *files, "--wait")
    assert code == 69
    assert max(map(len, seen)) == 2
    assert f"{lost}: the cluster cannot answer now: context test" in err
    # The other place runs the remaining jobs.
    assert sorted(jobs_in(server)) == [name_of(file) for file in files]
    assert "were not submitted" not in err


def test_without_a_place_the_rest_is_held_back(
    files: list[str], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    server.answer = lambda method, path: (
        (500, {}, json.dumps({"message": "etcd is away"}))
        if method == "GET" and "/jobsets/" in path and jobs_in(server)
        else None
    )
    code, _, err = run(config, "--timeout", "1", "submit", *files, "--wait")
    assert code == 69
    assert "3 jobs were not submitted; submit again to continue" in err
    assert len(jobs_in(server)) == 2


def test_a_job_that_is_deleted_gives_its_place_away(
    files: list[str], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    gone = name_of(files[0])

    def ends(name: str) -> Any:
        if name != gone:
            return COMPLETED
        if any("watch=true" in path and gone in path for _, path in [*server.requests]):
            server.remove(server.path(*JOBSET, gone))
        return None

    with controller(server, ends) as seen:
        code, _, err = run(config, "submit", *files, "--wait")
    assert code == 64
    assert f"job '{gone}' was deleted in the meantime" in err
    assert sorted(jobs_in(server)) == [name_of(file) for file in files[1:]]
    assert max(map(len, seen)) == 2


@pytest.mark.slow
def test_an_interrupt_ends_it_at_once(files: list[str], cluster: Cluster) -> None:
    """The jobs continue in the cluster."""
    server, config = cluster
    interrupt(config, "submit", *files, "--follow", line="submitted", times=2)
    assert len(jobs_in(server)) == 2
