"""On a machine, files that travel are next to the script: local, docker, compose."""

import io
import tarfile
from pathlib import Path

import pytest
import yaml

from k8s.cli import command
from k8s.render import launch_zip
from tests.rendering import (
    CLUSTER,
    LAUNCHERS,
    environment_in_pod,
    environment_in_script,
    job,
    pods,
    render,
    run_script,
)
from tests.unit.k8s.render.own_program import WORDS, own, write_job


def test_local_runs_in_the_folder_with_the_launcher_beside_it(folder: Path, tmp_path: Path) -> None:
    text = own("local", nodes=2).text
    place = tmp_path / "place"
    place.mkdir()
    code, _, errors = run_script(text.replace("cd .", f"cd {folder}"), place)
    assert code == 64
    assert "launch.pyz is not next to it; write both with render.py -o DIR" in errors
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


@pytest.mark.usefixtures("folder")
def test_local_says_where_to_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    path = write_job(tmp_path).name
    assert command.main([path, "--launcher", "local", "-o", str(other)]) == 0
    code, _, errors = run_script((other / "local.sh").read_text(encoding="utf-8"), other)
    assert (code, "no code folder code here; run this in the folder in wh" in errors) == (64, True)
    assert not (other / "build").exists()


def test_docker_mounts_what_stands_beside_the_script(folder: Path, tmp_path: Path) -> None:
    text = own("docker").text
    place = tmp_path / "place"
    place.mkdir()
    for name in ("launch.pyz", "code.tar.gz"):
        code, _, errors = run_script(text, place)
        assert code == 64
        assert f"{name} is not next to it" in errors
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


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_search_path_of_the_job_file_comes_after_the_code(
    launcher: str, folder: Path, tmp_path: Path
) -> None:
    """Else a task's own module is not found."""
    values = job(code={"path": "."}, env=[{"name": "PYTHONPATH", "value": "/opt/lib"}])
    if launcher in CLUSTER:
        environment = environment_in_pod(pods(render(values, launcher))[0])
    else:
        (folder / "code.tar.gz").write_text("")
        environment = environment_in_script(values, launcher, folder)
    code = str(folder) if launcher == "local" else "/code/.packages:/code"
    assert environment["PYTHONPATH"] == f"{code}:/opt/lib"
