"""python -m k8s submit: a dry run first, all objects or none, refusals, and waiting."""

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.base import yaml_text
from k8s.cluster.submit import one_job
from tests.cluster_objects import (
    COMPLETED,
    FAILED,
    JOBSET,
    RUNNING,
    Cluster,
    Run,
    golden,
    jobset,
    pod,
    refuse,
    submit,
)
from tests.conftest import wait_for
from tests.rendering import job, render


def test_submit_tries_first_and_then_applies(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    code, _, err = run(config, "submit", str(golden("jobset")))
    assert code == 0
    assert "submitted digits-ddp" in err
    requests = [path for method, path in server.requests if method == "PATCH"]
    writes = [path for path in requests if "/secrets/" not in path]
    half = len(writes) // 2
    assert all("dryRun=All" in path for path in writes[:half])
    assert not any("dryRun" in path for path in writes[half:])
    assert any(path.endswith("/jobsets/digits-ddp") for path in server.objects)


def test_what_is_submitted_arrives_whatever_it_is_written_in(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    """An apply is read as YAML, which refuses the surrogate pairs of JSON."""
    server, config = cluster
    text = "\U0001f600 \u6f22 \x85 \x7f \ufeff \\ud83d\\ude00"
    made = yaml.safe_load(golden("pytorchjob").read_text(encoding="utf-8").rpartition("---\n")[2])
    made["metadata"]["annotations"] = {"owner": text}
    file = tmp_path / "job.yaml"
    file.write_text(yaml_text.dump([made]), encoding="utf-8")
    assert run(config, "submit", str(file))[0] == 0
    (held,) = (one for path, one in server.objects.items() if "/pytorchjobs/" in path)
    assert held["metadata"]["annotations"]["owner"] == text


@pytest.mark.parametrize("key", ["namespace", "annotations"])
def test_a_key_of_a_manifest_without_a_value_is_none(
    key: str, run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    """As kubectl reads it."""
    made = [*yaml.safe_load_all(golden("job").read_text(encoding="utf-8"))]
    for one in made:
        one["metadata"][key] = None
    file = tmp_path / "job.yaml"
    file.write_text(yaml_text.dump(made), encoding="utf-8")
    for more in ([], [str(golden("job", "own-script"))]):
        code, _, err = run(cluster[1], "submit", str(file), *more)
        assert code == 0, err


def test_submit_writes_nothing_when_one_object_is_refused(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    refuse(server, 422, "spec.network:\n forbidden", method="PATCH", at="/jobsets/")
    code, _, err = run(config, "submit", str(golden("jobset")))
    assert code == 64
    assert "422: spec.network: forbidden" in err
    assert server.objects == {}


@pytest.mark.parametrize(
    ("served", "words"),
    [
        (None, "no TrainingRuntime (trainer.kubeflow.org/v1alpha1) here; install Kubeflow Trainer"),
        (
            "v2",
            "TrainingRuntime is served as v2, but the manifest says trainer.kubeflow.org/v1alpha1",
        ),
    ],
)
def test_submit_says_what_to_install(
    served: str | None, words: str, run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    del server.groups["trainer.kubeflow.org/v1alpha1"]
    if served:
        server.groups[f"trainer.kubeflow.org/{served}"] = {}
    code, _, err = run(config, "submit", str(golden("trainjob")))
    assert code == 64
    assert words in err
    assert server.objects == {}


def test_a_job_that_has_ended_is_not_submitted_over(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    assert run(config, "submit", str(golden("jobset")))[0] == 0
    assert run(config, "submit", str(golden("jobset")))[0] == 0  # no change: it still runs
    path = server.path(*JOBSET, "digits-ddp")
    server.store(path, server.objects[path] | {"status": COMPLETED})
    code, _, err = run(config, "submit", str(golden("jobset")))
    assert code == 64
    assert (
        "job digits-ddp already exists and has ended (succeeded); run `python -m k8s delete" in err
    )


@pytest.mark.parametrize("launcher", ["job", "jobset", "pytorchjob", "trainjob", "volcano"])
def test_the_pods_of_a_running_job_stay_as_they_are(
    launcher: str, run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    """Only some kinds refuse it themselves. In others a restarted pod would get other settings."""
    server, config = cluster
    submit(run, cluster, tmp_path, launcher, nodes=2)
    before = dict(server.objects)
    other = tmp_path / "other.yaml"
    other.write_text(render(job(nodes=2, trainer={"lr": 0.5}), launcher).text, encoding="utf-8")
    code, _, err = run(config, "submit", str(other))
    assert (code, "other settings or code; submit with --replace" in err) == (64, True), err
    assert server.objects == before
    submit(run, cluster, tmp_path, launcher, nodes=2)  # itself, again
    assert run(config, "submit", str(other), "--replace")[0] == 0
    assert "TRAINER_LR" in str(server.objects)


def test_a_job_of_another_launcher_has_the_name(run: Run, cluster: Cluster) -> None:
    """Both would have the same pod labels and one network policy, which `delete` would remove."""
    server, config = cluster
    assert run(config, "submit", str(golden("jobset")))[0] == 0
    before = dict(server.objects)
    for other in ("job", "trainjob"):
        code, _, err = run(config, "submit", str(golden(other)))
        assert (code, "already exists, on launcher jobset" in err) == (64, True)
    assert server.objects == before
    assert run(config, "submit", str(golden("jobset")))[0] == 0  # itself, again


@pytest.mark.parametrize(
    ("option", "shown", "lost"),
    [
        ("--follow", "[p] trained\n", False),
        ("--wait", "", False),
        pytest.param("--follow", "no log: ", True, marks=pytest.mark.slow),
    ],
)
def test_submit_follows_and_waits(
    option: str, shown: str, *, lost: bool, run: Run, cluster: Cluster
) -> None:
    """The exit code is the job's, even if the machine that has the logs is lost."""
    server, config = cluster
    if lost:
        refuse(server, 500, at="/log")

    def finish() -> None:
        path = server.path(*JOBSET, "digits-ddp")
        wait_for(lambda: path in server.objects)
        found = pod("p", 0, job="digits-ddp", phase="Running")
        del found["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        server.logs["p"] = "trained\n"
        server.put("v1", "Pod", found)
        server.store(path, server.objects[path] | {"status": FAILED})

    controller = threading.Thread(target=finish)
    controller.start()
    code, out, err = run(config, "--timeout", "3", "submit", str(golden("jobset")), option)
    controller.join()
    assert code == 70  # failed, and no pod has an exit code
    assert shown in out if lost else out == shown
    assert "failed: FailedJobs" in err


@pytest.mark.parametrize("status", [RUNNING, COMPLETED, FAILED])
def test_replace_waits_until_the_pods_are_gone(
    status: dict[str, Any], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    place = server.path(*JOBSET, "digits-ddp")
    server.put(*JOBSET, jobset(None, "digits-ddp", **status))
    server.put("v1", "Pod", pod("digits-ddp-0", 0, job="digits-ddp", phase="Running"))
    looks = 0

    def answer(method: str, target: str) -> None:
        nonlocal looks
        looks += method == "GET" and "/pods?" in target and place not in server.objects
        if looks == 2:
            server.objects.pop(server.path("v1", "Pod", "digits-ddp-0"), None)

    server.answer = answer
    code, _, err = run(config, "submit", str(golden("jobset")), "--replace")
    assert code == 0, err
    assert "deleting job digits-ddp and its 1 pods first" in err
    assert looks >= 2
    methods = [method for method, path in server.requests if path.partition("?")[0] == place]
    assert methods.index("DELETE") < methods.index("PATCH")
    assert place in server.objects


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_submit_waits_for_the_pods_of_a_deleted_job(phase: str, run: Run, cluster: Cluster) -> None:
    """They save into the same run folder. Kubernetes deletes them a little after the job."""
    server, config = cluster
    server.put("v1", "Pod", pod("digits-ddp-0", 0, job="digits-ddp", phase=phase))
    looks = 0

    def answer(method: str, target: str) -> None:
        nonlocal looks
        looks += method == "GET" and "/pods?" in target
        if looks == 2:
            server.objects.pop(server.path("v1", "Pod", "digits-ddp-0"), None)

    server.answer = answer
    code, _, err = run(config, "submit", str(golden("jobset")))
    assert code == 0, err
    assert looks == (2 if phase == "Running" else 1)
    assert ("waiting for 1 pods of an earlier job digits-ddp" in err) == (phase == "Running")
    place = server.path(*JOBSET, "digits-ddp")
    requests = [(method, path.partition("?")) for method, path in server.requests]
    applied = [at for at, (_, (path, _, query)) in enumerate(requests) if path == place]
    assert (
        max(at for at, (_, (path, *_)) in enumerate(requests) if path.endswith("/pods"))
        < applied[-1]
    )


@pytest.mark.parametrize("status", [RUNNING, COMPLETED])
@pytest.mark.parametrize("others", [[], [str(golden("jobset", "own-script"))]])
def test_submit_waits_for_a_job_that_is_being_deleted(
    status: dict[str, Any], others: list[str], run: Run, cluster: Cluster
) -> None:
    """A finalizer keeps it, e.g. that of an AppWrapper. What is applied to it would go with it."""
    server, config = cluster
    going = jobset(None, "digits-ddp", **status)
    going["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]}
    going["metadata"]["deletionGracePeriodSeconds"] = 0
    server.put(*JOBSET, going)
    place = server.path(*JOBSET, "digits-ddp")
    assert ("being deleted" in run(config, "list")[1]) == (status is RUNNING)

    def answer(method: str, target: str) -> None:
        before = [one for one, path in server.requests if path == place]
        if target == place and before[-3:] == ["DELETE", "GET", "GET"]:  # looked at twice
            server.objects.pop(place, None)

    server.answer = answer
    code, _, err = run(config, "submit", str(golden("jobset")), *others)
    assert code == 0, err
    assert "deletionTimestamp" not in server.objects[place]["metadata"]


def test_pods_of_a_deleted_job_that_do_not_go(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config = cluster
    left = pod("digits-ddp-0", 0, job="digits-ddp", phase="Running")
    left["spec"]["terminationGracePeriodSeconds"] = 0
    server.put("v1", "Pod", left)
    monkeypatch.setattr(one_job, "_GONE", 0.2)
    code, _, err = run(config, "submit", str(golden("jobset")))
    assert (code, "1 pods of an earlier job digits-ddp was deleted but is still" in err) == (
        69,
        True,
    )
    assert len(server.objects) == 1


def test_a_job_that_does_not_go_is_not_replaced(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config = cluster
    server.put(*JOBSET, jobset(None, "digits-ddp", **RUNNING))
    server.answer = lambda method, _: (200, {}, "{}") if method == "DELETE" else None
    monkeypatch.setattr(one_job, "_GONE", 0.2)
    code, _, err = run(config, "submit", str(golden("jobset")), "--replace")
    assert code == 69
    assert "job digits-ddp was deleted but is still there; try again" in err
    assert not [path for method, path in server.requests if method == "PATCH"]


@pytest.mark.parametrize("option", [[], ["--replace"]])
def test_a_job_of_the_name_that_is_not_ours_stays(
    option: list[str], run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    server.put(*JOBSET, {"metadata": {"name": "digits-ddp"}, "spec": {}})
    code, _, err = run(config, "submit", str(golden("jobset")), *option)
    assert code == 64
    assert "JobSet digits-ddp exists and is not managed by muster; choose another name" in err
    assert {method for method, _ in server.requests} == {"GET"}


def test_replace_is_for_a_job_that_need_not_be_there(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    files = [str(golden("jobset")), str(golden("job", "own-script"))]
    code, _, err = run(config, "submit", *files, "--replace")
    assert code == 0, err
    assert not [path for method, path in server.requests if method == "DELETE" and "/jobs" in path]
