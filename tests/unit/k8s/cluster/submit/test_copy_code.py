"""A folder that travels on a claim: `submit` copies it through a pod, before it applies the objects.

tests/cluster/test_own_script.py does this with real pods.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k8s.cli.command import main
from k8s.cluster.submit import copy_code
from tests.cluster_objects import Cluster, Run
from tests.rendering import job
from tests.standin.server import Server
from tests.unit.k8s.render.own_program import write_job

CLAIM = "/api/v1/namespaces/lab/persistentvolumeclaims/runs"
POD = "/api/v1/namespaces/lab/pods/a-job-code"


class Job:
    """A rendered job, a local folder as its claim, and the pod that copies, which runs at once.

    `phase` is the pod's phase; `enter` may replace a command in the pod.
    """

    def __init__(self, server: Server, config: Path, folder: Path, run: Run) -> None:
        self.server, self.config, self.folder, self.run = server, config, folder, run
        self.claim, self.out = folder / "claim", folder / "out"
        self.status: dict[str, Any] = {"phase": "Running"}
        self.enter: Callable[[list[str]], list[str]] = lambda command: command
        self.pods: list[dict[str, Any]] = []  # every copying pod
        self.copies = 0
        self.claim.mkdir()
        self.code("print(1)\n")
        server.put("v1", "PersistentVolumeClaim", {"metadata": {"name": "runs"}})
        server.answer, server.enter = self._answer, self._enter

    def code(self, text: str) -> None:
        (self.folder / "code").mkdir(exist_ok=True)
        (self.folder / "code" / "train.py").write_text(text)
        travels = {"path": "code", "via": "pvc"}
        file = write_job(self.folder, code=travels, checkpoints={"pvc": "runs"}, launcher="jobset")
        assert main([str(file), "-o", str(self.out)]) == 0

    def submit(self, file: str = "") -> tuple[int, str]:
        code, _, err = self.run(self.config, "submit", file or str(self.out / "jobset.yaml"))
        return code, err

    def on_claim(self) -> dict[str, bytes]:
        found = [path for path in self.claim.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.claim)): path.read_bytes() for path in found}

    def applied(self) -> list[str]:
        """Return the kinds and names that were written, without dry runs."""
        paths = [path for method, path in self.server.requests if method == "PATCH"]
        kept = [path.partition("?")[0] for path in paths if "dryRun" not in path]
        return ["/".join(path.split("/")[-2:]) for path in kept]

    def _answer(self, method: str, target: str) -> None:
        pod = self.server.objects.get(POD)
        if method == "GET" and target == POD and pod and "status" not in pod:
            self.pods.append(pod)
            self.server.change(pod, status=self.status)

    def _enter(self, path: str, command: list[str]) -> list[str]:
        assert path == POD
        self.copies += "head" in command[2]
        return self.enter([word.replace("/out/", f"{self.claim}/") for word in command])


@pytest.fixture
def made(cluster: Cluster, run: Run, tmp_path: Path) -> Job:
    return Job(*cluster, tmp_path, run)


def test_the_folder_is_there_before_the_first_object(made: Job) -> None:
    code, err = made.submit()
    assert code == 0, err
    archive = (made.out / "code.tar.gz").read_bytes()
    digest = hashlib.sha256(archive).hexdigest()
    assert made.on_claim() == {f".muster-code/a-job/{digest}.tar.gz": archive}
    assert made.applied()[0] == "pods/a-job-code"
    assert "jobsets/a-job" in made.applied()
    assert POD not in made.server.objects
    assert "copied the folder to claim runs: " in err


def test_the_pod_has_the_rights_of_the_jobs_own_pods(made: Job) -> None:
    made.submit()
    (pod,) = (one["spec"] for one in made.pods)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == 65532
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["image"] == job()["image"]
    assert pod["activeDeadlineSeconds"] == copy_code.LIFE
    assert pod["automountServiceAccountToken"] is False


def test_what_is_there_is_not_copied_again_and_what_was_before_goes(made: Job) -> None:
    made.submit()
    code, err = made.submit()
    assert (code, made.copies) == (0, 1)
    assert "claim runs has the folder already: " in err
    (made.claim / "other").write_text("mine")
    made.code("print(2)\n")
    made.server.remove(made.server.path("jobset.x-k8s.io/v1alpha2", "JobSet", "a-job"))
    assert made.submit()[0] == 0
    archive = (made.out / "code.tar.gz").read_bytes()
    name = f".muster-code/a-job/{hashlib.sha256(archive).hexdigest()}.tar.gz"
    assert made.on_claim() == {name: archive, "other": b"mine"}
    assert made.copies == 2


def test_a_damaged_copy_is_made_anew(made: Job) -> None:
    made.submit()
    (name,) = made.on_claim()
    (made.claim / name).write_bytes(b"half")
    assert made.submit()[0] == 0
    assert made.on_claim()[name] == (made.out / "code.tar.gz").read_bytes()


@pytest.mark.parametrize("place", [".muster-code", ".muster-code/a-job"])
def test_a_link_to_what_is_not_the_jobs_is_not_followed(place: str, made: Job) -> None:
    theirs = made.claim / "theirs"
    theirs.mkdir()
    (theirs / "a-job").write_text("mine")
    (made.claim / place).parent.mkdir(exist_ok=True)
    (made.claim / place).symlink_to(theirs)
    code, err = made.submit()
    assert code == 71
    assert f"/{place} is a link; remove it" in err
    assert made.on_claim() == {"theirs/a-job": b"mine"}


def test_a_link_in_place_of_the_file_that_comes_is_replaced(made: Job) -> None:
    made.submit()
    (name,) = made.on_claim()
    (made.claim / name).unlink()
    (made.claim / "theirs").write_text("mine")
    (made.claim / f"{name}.part").symlink_to(made.claim / "theirs")
    assert made.submit()[0] == 0
    archive = (made.out / "code.tar.gz").read_bytes()
    assert made.on_claim() == {name: archive, "theirs": b"mine"}


def test_a_pod_that_was_left_behind_is_replaced(made: Job) -> None:
    left = {"metadata": {"name": "a-job-code"}, "spec": {}, "status": {"phase": "Failed"}}
    made.server.put("v1", "Pod", left)
    code, err = made.submit()
    assert code == 0, err
    assert len(made.pods) == 1


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (
            lambda out: (out / "code.tar.gz").unlink(),
            "code.tar.gz: No such file or directory; render",
        ),
        (lambda out: (out / "code.tar.gz").write_bytes(b"other"), "code.tar.gz: has the hash "),
    ],
)
def test_another_folder_than_the_manifests_is_refused(
    prepare: Callable[[Path], Any], words: str, made: Job
) -> None:
    prepare(made.out)
    code, err = made.submit()
    assert code == 64
    assert words in err
    assert made.applied() == []


def test_a_manifest_without_its_folder_is_refused(
    made: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (made.out / "jobset.yaml").open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        code, err = made.submit("-")
    assert code == 64
    assert "render with -o DIR and submit the manifest's file" in err
    assert made.applied() == []


def test_a_claim_that_is_not_there_is_refused(made: Job) -> None:
    del made.server.objects[CLAIM]
    code, err = made.submit()
    assert code == 64
    assert "no PersistentVolumeClaim runs for the job's code folder; create it" in err
    assert made.applied() == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo 'No space left on device' >&2; exit 1",
            "cannot be written: No space left on device",
        ),
        ("", "cannot be written: the copy is not what was sent"),
    ],
)
def test_a_copy_that_fails_leaves_neither_pod_nor_job(script: str, words: str, made: Job) -> None:
    def enter(command: list[str]) -> list[str]:
        if "head" not in command[2]:
            return command
        lost = command[2].replace('head -c "$3"', "head -c 3")  # the rest is lost
        return ["sh", "-c", script or lost, *command[3:]]

    made.enter = enter
    code, err = made.submit()
    assert code == 71
    assert words in err
    assert made.applied() == ["pods/a-job-code"]
    assert POD not in made.server.objects


NO_NODE = {"type": "PodScheduled", "status": "False", "message": "no node"}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"phase": "Pending", "conditions": [NO_NODE]},
            "pod a-job-code, which copies the folder, is Pending: no node; try again",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, "is Failed: Evicted; try again"),
    ],
)
def test_a_pod_that_does_not_run_is_not_waited_for_forever(
    status: dict[str, Any], words: str, made: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_code, "_START", 0.7)
    made.status = status
    code, err = made.submit()
    assert code == 69
    assert words in err
    assert made.applied() == ["pods/a-job-code"]
    assert POD not in made.server.objects


def test_a_large_folder_goes_in_many_messages(made: Job) -> None:
    (made.folder / "code" / "data").write_bytes(os.urandom(2**21))
    made.code("print(1)\n")
    assert made.submit()[0] == 0
    assert len(next(iter(made.on_claim().values()))) > 2**21


@pytest.mark.parametrize(
    "changed",
    [
        {"containers": []},
        {"containers": None},
        {"containers": [{"name": "a"}]},
        {"containers": [{"name": "a", "env": [{"name": "MUSTER_CODE", "value": "/a/b"}]}]},
    ],
)
def test_a_pod_that_looks_for_no_folder_on_a_claim(changed: dict[str, Any]) -> None:
    """A manifest that a user has written by hand; the server reports what else is wrong."""
    changed.setdefault("volumes", [])
    assert copy_code.find([{"kind": "Job", "spec": {"template": {"spec": changed}}}]) is None
