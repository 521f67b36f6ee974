"""Which folder travels, relative to the file that names it; other folders are refused in one line."""

import os
from pathlib import Path

import pytest
import yaml

from k8s.cli import command
from tests.rendering import (
    job,
    refused,
)
from tests.unit.k8s.render.own_program import own, write_job


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
        (["code.path=none"], "code.path='none': no such folder, relative to the job file's"),
        (["code.path=train.py"], "code.path='train.py': no such folder"),
        (["code.path=.."], "code.path='..': outside the job file's folder; put the job file into"),
        (["code.path=/tmp"], "code.path='/tmp': outside the job file's folder"),
        (["code.path=out"], "code.path='out': outside the job file's folder"),
        (["code.path=empty"], "code.path='empty': has no files to pack"),
        (["code.path=''"], "code.path='': String should have at least 1 character"),
        (["run.script=tran.py"], "run.script='tran.py': no such file in code.path='.'"),
        (["run.script=../job.yaml"], "run.script='../job.yaml': no such file in code.path='.'"),
        (["run.script=package"], "run.script='package': no such file in code.path='.'"),
        (["run.script=a.log"], "run.script='a.log': exists, but does not travel; see .gitignore"),
        (["run.script=link.py"], "run.script='link.py': exists, but does not travel; see"),
        (["code={path: ., git: 'https://h/a'}"], "code.revision: missing; it is the commit"),
        (["code={path: ., secret: a}"], "code.secret: only with code.git"),
        (["code={path: ., pvc: a}"], "code.pvc='a': only with code.via=pvc"),
        (["code={path: ., via: nfs}"], "code.via='nfs': must be 'configMap' or 'pvc'"),
        (
            ["code={path: ., via: pvc}"],
            "code.via='pvc': no claim to copy the folder to; name an existing one",
        ),
        (
            ["code={path: ., via: pvc}", "checkpoints={claim: {size: 1Gi}}"],
            "code.via='pvc': no claim",
        ),
        (
            ["code={git: https://h/a, revision: main, via: pvc}"],
            "code.via: not with code.git, only for a folder; leave",
        ),
        (
            ["code={}"],
            "code: has neither git nor path; set code.git, or code.path for a folder here",
        ),
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
    (folder / "link.py").symlink_to("a.log")
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
    warned = (
        "render.py: warning: code.path: id_rsa looks like a key and is not copied; use a Secret\n"
    )
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


def test_the_folder_of_the_renderings_does_not_travel(folder: Path, tmp_path: Path) -> None:
    path = str(write_job(tmp_path))
    options = ["--launcher", "docker", "--launcher", "job", "-o", "build"]
    assert command.main([path, *options]) == 0
    first = (folder / "build" / "code.tar.gz").read_bytes()
    (folder / "build" / "a-job").mkdir()  # such as an earlier run on this machine
    (folder / "build" / "a-job" / "part.py").write_text("")
    assert command.main([path, *options]) == 0
    assert (folder / "build" / "code.tar.gz").read_bytes() == first
    assert command.main([path, "--diff", "build/job.yaml"]) == 0
    # A folder that travels within that of the renderings is left whole.
    assert command.main([path, "-o", ".."]) == 64  # it has job.yaml
    assert command.main([path, "-o", "..", "--launcher", "docker"]) == 0
