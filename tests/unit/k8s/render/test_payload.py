"""What travels with a job: the launcher and the folder, on every cluster launcher."""

import base64
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli import command
from k8s.render import archive, launch_zip
from tests.cluster_objects import Cluster, Run
from tests.conftest import git, run_command
from tests.rendering import (
    CLUSTER,
    LAUNCHERS,
    environment_in_pod,
    environment_in_script,
    expand,
    job,
    only,
    pods,
    render,
)
from tests.unit.k8s.render.own_program import RUN, WORDS, maps, own, write_job
from trainer.commit import commit_of


@pytest.mark.parametrize("launcher", CLUSTER)
def test_launcher_and_code_are_in_config_maps_named_by_their_hash(
    launcher: str, folder: Path
) -> None:
    rendered = own(launcher)
    found = maps(rendered)
    wanted = {
        "launch.pyz": launch_zip.build(),
        "code.tar.gz": archive.pack(folder, label="").content,
    }
    for role, (file, content) in zip(("launch", "code"), wanted.items(), strict=True):
        digest = hashlib.sha256(content).hexdigest()
        one = found[file]
        assert base64.b64decode(one["binaryData"][file]) == content
        assert one["immutable"] is True
        assert one["metadata"]["name"] == f"a-job-{role}-{digest[:10]}"
        assert one["metadata"]["labels"][f"muster/{role}-hash"] == digest[:10]
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "a-job"
        for pod in pods(rendered):
            volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
            (mount,) = (
                mount
                for mount in pod["spec"]["containers"][0]["volumeMounts"]
                if mount["name"] == f"muster-{role}"
            )
            assert mount["readOnly"] is True
            source = volumes[mount["name"]]["configMap"]
            assert source == {"name": one["metadata"]["name"]}
            if role == "code":
                seen = environment_in_pod(pod)
                assert seen["MUSTER_CODE"] == f"{mount['mountPath']}/{file}"
                assert seen["MUSTER_CODE_SHA256"] == digest
                assert seen["MUSTER_CODE_FOLDER"] == "/code"


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"checkpoints": {"pvc": "runs"}}, "/out"),
        ({"checkpoints": {"pvc": "runs"}, "code": {"pvc": "runs"}}, "/out"),
        ({"checkpoints": {"pvc": "runs"}, "code": {"pvc": "mine"}}, "/muster-code"),
        ({"code": {"pvc": "mine"}}, "/muster-code"),
    ],
)
def test_code_on_a_claim_is_in_no_config_map(
    launcher: str, keys: dict[str, Any], place: str, folder: Path
) -> None:
    code = {"path": ".", "via": "pvc", **keys.get("code", {})}
    rendered = own(launcher, **{**keys, "code": code})
    beside = [one.name for one in rendered.plan.beside]
    if launcher not in CLUSTER:
        assert "code.tar.gz" in beside or launcher == "local"
        return
    assert beside == ["code.tar.gz"]
    assert list(maps(rendered)) == ["launch.pyz"]
    digest = hashlib.sha256(rendered.plan.beside[0].content).hexdigest()
    for pod in pods(rendered):
        seen = environment_in_pod(pod)
        assert seen["MUSTER_CODE"] == f"{place}/.muster-code/a-job/{digest}.tar.gz"
        assert seen["MUSTER_CODE_SHA256"] == digest
        mounts = {m["mountPath"]: m for m in pod["spec"]["containers"][0]["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        claim = volumes[mounts[place]["name"]]["persistentVolumeClaim"]
        assert claim == {"claimName": "runs" if place == "/out" else "mine"}
        assert mounts[place].get("readOnly", False) == (place != "/out")
        assert ("/muster-code" in mounts) == (place != "/out")  # no claim is mounted twice


@pytest.mark.parametrize("launcher", CLUSTER)
@pytest.mark.parametrize("task", [{}, {"run": None, "trainer": {"task": "train:Task"}}])
def test_the_commit_is_in_the_pods_and_on_the_job(
    launcher: str, task: dict[str, Any], folder: Path
) -> None:
    assert not [text for text in [str(own(launcher, **task).objects)] if "code-commit" in text]
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "a")
    commit = commit_of(folder, new_files=True)
    rendered = own(launcher, **task)
    about = rendered.objects[-1]["metadata"]["annotations"]
    assert about["muster/code-commit"] == commit
    for pod in pods(rendered):
        environment = environment_in_pod(pod)
        assert environment["MUSTER_CODE_COMMIT"] == commit
        assert about["muster/code-sha256"] == environment["MUSTER_CODE_SHA256"]
    assert "annotations" not in maps(rendered)["code.tar.gz"]["metadata"]


@pytest.mark.parametrize(("revision", "is_known"), [("0" * 40, True), ("main", False)])
def test_of_a_repository_the_commit_is_known_by_its_hash(revision: str, *, is_known: bool) -> None:
    rendered = render(job(code={"git": "https://h/a", "revision": revision}), "job")
    (pod,) = pods(rendered)
    found = environment_in_pod(pod).get("MUSTER_CODE_COMMIT")
    assert found == (revision if is_known else None)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_the_container_runs_the_program_under_the_launcher(launcher: str, folder: Path) -> None:
    for pod in pods(own(launcher)):
        container = pod["spec"]["containers"][0]
        words = [expand(word, {"PET_NNODES": "wrong"}) for word in container["command"]]
        assert words == ["python3", "/muster/launch.pyz", *WORDS]
        assert "args" not in container
        assert "workingDir" not in container
        environment = environment_in_pod(pod)
        assert environment["MUSTER_PYTHONPATH"] == "/code/.packages:/code"
        assert "PYTHONPATH" not in environment  # the image's own


@pytest.mark.parametrize("launcher", CLUSTER)
def test_our_trainer_with_a_folder_has_no_launcher_of_its_own(launcher: str, folder: Path) -> None:
    rendered = own(launcher, run=None, trainer={"task": "train:Task"})
    assert set(maps(rendered)) == {"code.tar.gz"}
    for pod in pods(rendered):
        container = pod["spec"]["containers"][0]
        assert "command" not in container
        assert container["livenessProbe"]["exec"]["command"] == ["python", "-m", "trainer.health"]
        assert environment_in_pod(pod)["MUSTER_CODE_FOLDER"] == "/code"


def test_code_from_git_is_where_the_program_starts() -> None:
    code = {"git": "https://h/a", "revision": "0" * 40}
    rendered = render(job(run=RUN, code=code), "job")
    assert set(maps(rendered)) == {"launch.pyz"}
    (pod,) = pods(rendered)
    assert pod["spec"]["containers"][0]["workingDir"] == "/code"
    assert [step["name"] for step in pod["spec"]["initContainers"]] == ["code"]


def test_the_same_files_have_the_same_names_and_others_do_not(folder: Path) -> None:
    def names() -> set[str]:
        return {one["metadata"]["name"] for one in maps(own("job")).values()}

    before = names()
    assert names() == before
    (folder / "train.py").write_text("changed")
    assert len(names() & before) == 1  # the launcher


def test_a_folder_needs_no_way_out_of_the_network(folder: Path) -> None:
    changes = {"network": {"isolate": True}, "run": RUN, "code": {"path": "."}}
    egress = only(render(job(**changes), "job"), "NetworkPolicy")["spec"]["egress"]
    ranks, names = egress
    assert "ipBlock" not in str(ranks)
    assert {port["port"] for port in names["ports"]} == {53}


def test_setup_finds_the_code_unpacked(folder: Path, tmp_path: Path) -> None:
    rendered = own("job", setup=["test -e package/part.py"])
    (pod,) = pods(rendered)
    (step,) = pod["spec"]["initContainers"]
    seen = {one["name"]: one.get("value", "") for one in step["env"]}
    packed = tmp_path / "code.tar.gz"
    packed.write_bytes(base64.b64decode(maps(rendered)["code.tar.gz"]["binaryData"]["code.tar.gz"]))
    out = tmp_path / "out"
    out.mkdir()
    script = expand(step["command"][2], {}).replace("cd /code", f"cd {out}")

    def done() -> subprocess.CompletedProcess[str]:
        return run_command(["bash", "-c", script], env={**seen, "MUSTER_CODE": str(packed)})

    assert done().returncode == 0, done().stderr
    packed.write_bytes(packed.read_bytes() + b"x")
    assert done().returncode != 0


def test_the_liveness_probe_runs_the_launchers_own_check(folder: Path, tmp_path: Path) -> None:
    (pod,) = pods(own("job"))
    probe = pod["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]
    path = tmp_path / "launch.pyz"
    path.write_bytes(launch_zip.build())
    (folder / "trainer").mkdir()  # the user's own package of the same name does no harm
    (folder / "trainer" / "__init__.py").write_text("raise SystemExit(5)")
    health = tmp_path / "health"
    health.mkdir()
    words = [sys.executable, *(word.replace("/muster/launch.pyz", str(path)) for word in probe[1:])]

    def code() -> int:
        environment = {"TRAINER_HEALTH": str(health), "PYTHONPATH": str(folder)}
        return subprocess.run(words, env=environment, capture_output=True, check=False).returncode

    assert probe[0] == "python3"
    assert code() == 1  # nothing is there yet
    (health / "launcher").write_text('{"time": 0, "signs": 1, "limit": 0}')
    assert code() == 0


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_restart_in_place_where_the_job_says_so(launcher: str, tmp_path: Path) -> None:
    def most(restarts: str) -> set[str | None]:
        values = job(nodes=2, faults={"restarts": restarts, "maxRestarts": 5}, trainer={})
        values["trainer"] = {"globalBatch": 64}
        if launcher in CLUSTER:
            found = [environment_in_pod(pod) for pod in pods(render(values, launcher))]
        else:
            found = [environment_in_script(values, launcher, tmp_path)]
        return {one.get("PET_MAX_RESTARTS") for one in found}

    assert (most("ranks"), most("node")) == ({"5"}, {None})


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_tool_that_starts_its_own_processes_has_one_of_a_node(
    launcher: str, tmp_path: Path
) -> None:
    values = job(run={"command": ["a"]}, resources={"gpu": 4}, procsPerNode=0)
    rendered = render(values, launcher)
    assert (rendered.plan.size.procs, rendered.plan.ranks) == (1, 1)
    assert rendered.plan.program == ("--", "a")


def test_the_plan_says_what_runs_and_what_travels(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_job(tmp_path, faults={"restarts": "ranks"})
    assert command.main([str(path), "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "  runs           train.py\n" in shown
    assert "  carried        launch.pyz " in shown
    assert "  restarts       of the ranks in place, 3 at most; then exit 64" in shown
    assert not [label for label in ("mode", "mesh", "batch", "rank's") if f"  {label} " in shown]
    assert command.main([str(path), "--plan", "--json"]) == 0
    (said,) = yaml.safe_load(capsys.readouterr().out)
    assert (said["program"], said["sizing"], said["estimate"]) == (["train.py"], None, None)
    assert set(said["carried"]) == {"launch.pyz", "code.tar.gz"}
    assert said["carried"]["launch.pyz"] == hashlib.sha256(launch_zip.build()).hexdigest()


def test_what_travels_is_owned_wrapped_submitted_and_deleted_with_the_job(
    folder: Path, tmp_path: Path, run: Run, cluster: Cluster
) -> None:
    server, config = cluster
    wrapper = own("job", appWrapper=True).objects[0]["spec"]["components"]
    assert [one["template"]["kind"] for one in wrapper].count("ConfigMap") == 2
    path = write_job(tmp_path)
    assert command.main([str(path), "--owner", "1-2-3", "-o", "out"]) == 0
    objects = list(yaml.safe_load_all(Path("out/job.yaml").read_text()))
    owned = [one for one in objects if one["kind"] == "ConfigMap"]
    assert [one["metadata"]["ownerReferences"][0]["uid"] for one in owned] == ["1-2-3"] * 2
    assert command.main([str(path), "-o", "out"]) == 0
    assert run(config, "submit", "out/job.yaml")[0] == 0
    assert len(server.all("v1", "ConfigMap")) == 2
    assert run(config, "delete", "a-job")[0] == 0
    assert server.all("v1", "ConfigMap") == []
