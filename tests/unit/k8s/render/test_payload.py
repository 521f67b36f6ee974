"""What travels with a job: the launcher and the folder, on every launcher, or a refusal in one line."""

import base64
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli import command
from k8s.render import archive, launch_zip
from k8s.render.manifests import Rendered
from tests.cluster_objects import Run
from tests.rendering import (
    AWKWARD,
    CLUSTER,
    LAUNCHERS,
    environment_in_pod,
    environment_in_script,
    expand,
    job,
    only,
    pods,
    refused,
    render,
    run_script,
)
from tests.standin.server import Server

RUN = {"script": "train.py", "args": ["--name", *AWKWARD]}
WORDS = ["train.py", "--name", *AWKWARD]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, which is the current one."""
    code = tmp_path / "code"
    (code / "package").mkdir(parents=True)
    (code / "train.py").write_text("import package.part\n")
    (code / "package" / "part.py").write_text("")
    monkeypatch.chdir(code)
    return code


def own(launcher: str, **changes: Any) -> Rendered:
    return render(job(**{"run": RUN, "code": {"path": "."}, **changes}), launcher)


def maps(rendered: Rendered) -> dict[str, dict[str, Any]]:
    """Return the ConfigMaps by the name of their file."""
    found = [one for one in rendered.objects if one["kind"] == "ConfigMap"]
    return {next(iter(one["binaryData"])): one for one in found}


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

    def done() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, **seen, "MUSTER_CODE": str(packed)},
            capture_output=True,
            check=False,
        )

    assert done().returncode == 0, done().stderr
    packed.write_bytes(packed.read_bytes() + b"x")
    assert done().returncode != 0


def test_the_liveness_probe_runs_the_launchers_own_check(folder: Path, tmp_path: Path) -> None:
    (pod,) = pods(own("job"))
    probe = pod["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]
    path = tmp_path / "launch.pyz"
    path.write_bytes(launch_zip.build())
    (folder / "trainer").mkdir()  # a package of the user's own is in nobody's way
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


# --- on a machine


def test_local_runs_in_the_folder_with_the_launcher_beside_it(folder: Path, tmp_path: Path) -> None:
    text = own("local", nodes=2).text
    place = tmp_path / "place"
    place.mkdir()
    code, _, errors = run_script(text.replace("cd .", f"cd {folder}"), place)
    assert code == 64
    assert "launch.pyz is not beside it; write both with render.py -o DIR" in errors
    (place / "launch.pyz").write_text("")
    code, seen, errors = run_script(text.replace("cd .", f"cd {folder}"), place, PYTHON="./docker")
    assert code == 0, errors
    assert seen["arguments"] == [str(place / "launch.pyz"), *WORDS]
    environment = seen["environment"]
    assert environment["PWD"] == str(folder)
    assert environment["PYTHONPATH"].split(":")[0] == str(folder)
    assert Path(environment["TRAINER_OUT"]).is_absolute()
    assert environment["PET_NPROC_PER_NODE"] == "2"
    assert "MUSTER_CODE" not in environment


def test_docker_mounts_what_stands_beside_the_script(folder: Path, tmp_path: Path) -> None:
    text = own("docker").text
    place = tmp_path / "place"
    place.mkdir()
    for name in ("launch.pyz", "code.tar.gz"):
        code, _, errors = run_script(text, place)
        assert code == 64
        assert f"{name} is not beside it" in errors
        (place / name).write_text("")
    code, seen, errors = run_script(text, place)
    assert code == 0, errors
    words = seen["arguments"]
    assert words[-len(WORDS) - 2 :] == ["muster:cpu", "/muster/launch.pyz", *WORDS]
    assert words[words.index("--entrypoint") + 1] == "python3"
    mounts = [words[at + 1] for at, word in enumerate(words) if word == "--mount"]
    assert f"type=bind,source={place}/launch.pyz,target=/muster/launch.pyz,readonly" in mounts
    assert (
        f"type=bind,source={place}/code.tar.gz,target=/muster-code/code.tar.gz,readonly" in mounts
    )
    assert "/code:rw,exec,mode=1777" in words


def test_compose_mounts_what_stands_beside_its_file(folder: Path) -> None:
    services = yaml.safe_load(own("compose", nodes=2).text)["services"]
    for service in services.values():
        words = [word.replace("$$", "$") for word in service["entrypoint"]]
        assert words == ["python3", "/muster/launch.pyz", *WORDS]
        mounts = {one["target"]: one for one in service["volumes"]}
        for target, source in (
            ("/muster/launch.pyz", "./launch.pyz"),
            ("/muster-code/code.tar.gz", "./code.tar.gz"),
        ):
            assert mounts[target]["source"] == source
            assert mounts[target]["read_only"] is True
        assert "/code:rw,exec,mode=1777" in service["tmpfs"]


def test_what_travels_is_written_beside_a_machines_files_alone(folder: Path) -> None:
    write_job(folder.parent)
    arguments = [str(folder.parent / "job.yaml"), "-o", "out"]
    everywhere = [part for name in LAUNCHERS for part in ("--launcher", name)]
    assert command.main([*arguments, *everywhere]) == 0
    assert Path("out/launch.pyz").read_bytes() == launch_zip.build()
    with tarfile.open(fileobj=io.BytesIO(Path("out/code.tar.gz").read_bytes())) as opened:
        assert opened.getnames() == ["package/part.py", "train.py"]
    assert Path("out/launch.pyz").stat().st_mode & 0o777 == 0o644
    assert command.main([*arguments[:-1], "other", "--launcher", "job"]) == 0
    assert [path.name for path in Path("other").iterdir()] == ["job.yaml"]


# --- where the folder is


def write_job(folder: Path, **changes: Any) -> Path:
    path = folder / "job.yaml"
    values = {**job(run={"script": "train.py"}, code={"path": "code"}), **changes}
    path.write_text(yaml.safe_dump(values))
    return path


def test_the_folder_is_seen_from_the_file_that_names_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_job(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    over = tmp_path / "elsewhere" / "over.yaml"
    over.write_text("nodes: 2")
    assert command.main([str(path), str(over), "--check"]) == 0


@pytest.mark.parametrize("setting", ["code.path=.", "code={path: .}"])
def test_the_folder_of_an_option_is_seen_from_the_current_one(
    setting: str, folder: Path, tmp_path: Path
) -> None:
    assert command.main([str(write_job(tmp_path)), "--set", setting, "--check"]) == 0


def test_the_folder_of_a_job_file_from_a_pipe_is_seen_from_the_current_one(folder: Path) -> None:
    text = yaml.safe_dump(job(run={"script": "train.py"}, code={"path": "."})).encode()
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    try:
        assert command.main([f"/dev/fd/{reading}", "--check"]) == 0
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["code.path=none"], "code.path='none': no such folder, seen from the job file's own"),
        (["code.path=train.py"], "code.path='train.py': no such folder"),
        (["code.path=.."], "code.path='..': out of the job file's folder; put the job file into"),
        (["code.path=/tmp"], "code.path='/tmp': out of the job file's folder"),
        (["code.path=out"], "code.path='out': out of the job file's folder"),
        (["code.path=empty"], "code.path='empty': holds no files that would travel"),
        (["code.path=''"], "code.path='': String should have at least 1 character"),
        (["run.script=tran.py"], "run.script='tran.py': no such file in code.path='.'"),
        (["run.script=../job.yaml"], "run.script='../job.yaml': no such file in code.path='.'"),
        (["run.script=package"], "run.script='package': no such file in code.path='.'"),
        (["run.script=a.log"], "run.script='a.log': is there, but does not travel; see .gitignore"),
        (["code={path: ., git: 'https://h/a'}"], "code.revision: missing; it is the commit"),
        (["code={path: ., secret: a}"], "code.secret: goes with code.git"),
        (["code={}"], "code: must have git, or path without git; has none"),
        (
            ["code={git: 'https://h/a', revision: b}", "launcher=local"],
            "code: not on launcher local",
        ),
    ],
)
def test_a_folder_that_cannot_travel(
    settings: list[str],
    says: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "empty").mkdir()
    (folder / "out").symlink_to("..")
    (folder / "a.log").write_text("")
    (folder / ".gitignore").write_text("*.log\nout\n")
    (folder / "job.yaml").write_text(
        yaml.safe_dump(job(run={"script": "train.py"}, code={"path": "."}))
    )
    pairs = [part for setting in settings for part in ("--set", setting)]
    line = refused(["job.yaml", *pairs], tmp_path, capsys)
    assert line.removeprefix("render.py: ").split(": ", 1)[1].startswith(says), line


@pytest.mark.parametrize("script", ["./train.py", "package/../train.py", "link.py", "way/part.py"])
def test_a_script_may_be_written_in_other_ways(script: str, folder: Path) -> None:
    (folder / "link.py").symlink_to("train.py")
    (folder / "way").symlink_to("package")
    assert own("job", run={"script": script}).plan.program == (script,)


def test_a_script_in_the_image_is_not_looked_for(folder: Path) -> None:
    assert own("job", run={"script": "/opt/train.py"}).plan.program == ("/opt/train.py",)


def test_a_key_that_stays_is_warned_of_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "id_rsa").write_text("secret")
    assert command.main([str(write_job(tmp_path)), "--all", "--check"]) == 0
    warned = "render.py: warning: code.path: id_rsa looks like a key and stays here; use a Secret\n"
    assert capsys.readouterr().err == warned


def test_what_kubectl_cannot_apply_is_warned_of(folder: Path) -> None:
    assert not [one for one in own("job").plan.warnings if "--server-side" in one]
    (folder / "large").write_bytes(os.urandom(200 * 1024))
    assert [one for one in own("job").plan.warnings if "--server-side" in one]


def test_a_folder_that_is_too_large_is_refused_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "large").write_bytes(os.urandom(1000 * 1024))
    line = refused([str(write_job(tmp_path))], tmp_path, capsys)
    assert "code.path='code': more than 900 KiB when compressed" in line
    assert line.endswith(
        "the largest: large (1,000 KiB), train.py (0 KiB), package/part.py (0 KiB)"
    )


# --- with the rest


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
    folder: Path, tmp_path: Path, run: Run, cluster: tuple[Server, Path]
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
