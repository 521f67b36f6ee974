"""What runs before the trainer: the scripts are really run, and stop at a command that fails."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from k8s.jobfile import code
from tests.conftest import git
from tests.rendering import CLUSTER, expand, job, planned, pods, render

SHA = "0" * 40


def steps(**changes: Any) -> list[dict[str, Any]]:
    (pod,) = pods(render(job(**changes), "job"))
    found: list[dict[str, Any]] = pod["spec"]["initContainers"]
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two commits."""
    folder = tmp_path / "origin"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for text in ("first", "second"):
        (folder / "file").write_text(text)
        git(folder, "add", "file")
        git(folder, "commit", "--quiet", "-m", text)
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    return folder


def clone(repository: Path, revision: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", code.GIT],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "CODE_FOLDER": str(tmp_path / "code"),
            "CODE_REPOSITORY": f"file://{repository}",
            "CODE_REVISION": revision,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_code_is_that_of_the_commit(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD~1")
    done = clone(repository, first, tmp_path)
    assert (done.returncode, done.stdout) == (0, f"code: {first}\n")
    assert (tmp_path / "code" / "file").read_text() == "first"


def test_a_pod_that_is_set_up_anew_gets_the_code_again(repository: Path, tmp_path: Path) -> None:
    for revision in ("main~1", "main"):
        commit = git(repository, "rev-parse", revision)
        done = clone(repository, commit, tmp_path)
        assert (done.returncode, done.stdout) == (0, f"code: {commit}\n"), done.stderr
        (tmp_path / "code" / "file").write_text("as setup commands left it")
    clone(repository, "main", tmp_path)
    assert (tmp_path / "code" / "file").read_text() == "second"


def test_a_branch_is_its_newest_commit(repository: Path, tmp_path: Path) -> None:
    assert clone(repository, "main", tmp_path).returncode == 0
    assert (tmp_path / "code" / "file").read_text() == "second"


@pytest.mark.parametrize("revision", [SHA, "no-such-branch"])
def test_a_clone_that_fails_ends_the_step(revision: str, repository: Path, tmp_path: Path) -> None:
    """mlbatch would train even so, because its commands run without set -e."""
    done = clone(repository, revision, tmp_path)
    assert done.returncode != 0
    assert "code:" not in done.stdout


@pytest.mark.parametrize(
    ("commands", "code", "said"),
    [
        (["false", "echo went on"], 1, ""),
        (["false | true", "echo went on"], 1, ""),
        (['echo "$NO_SUCH_VARIABLE"', "echo went on"], 1, ""),
        (["exit 7"], 7, ""),
        (["echo one", "echo 'two  words'"], 0, "one\ntwo  words\n"),
        (["if true; then", "echo yes; fi"], 0, "yes\n"),
    ],
)
def test_setup_stops_at_the_first_command_that_fails(
    commands: list[str], code: int, said: str, tmp_path: Path
) -> None:
    (step,) = steps(setup=commands)
    shell, option, script = step["command"]
    script = expand(script, {}).replace("cd /code", f"cd {tmp_path}")
    done = subprocess.run([shell, option, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, said)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_steps_come_before_the_trainer_in_their_order(launcher: str) -> None:
    values = job(
        code={"git": "https://git.example.com/a", "revision": SHA, "path": "src"},
        setup=["true"],
        data={"pull": {"source": "s3://bucket/a", "size": "1Gi"}},
        resources={"gpu": 8, "cpu": 4, "memory": "8Gi"},
        env=[{"name": "A", "value": "$x $(A)"}],
    )
    for pod in pods(render(values, launcher)):
        inside = pod["spec"]
        names = [one["name"] for one in inside["initContainers"]]
        assert names == ["code", "data", "setup"]
        assert all(
            one["resources"]["limits"] == {"memory": "8Gi"} for one in inside["initContainers"]
        )
        environment = {one["name"]: one.get("value") for one in inside["containers"][0]["env"]}
        assert environment["PYTHONPATH"] == "/code/.packages:/code/src"
        setup = {one["name"]: one.get("value") for one in inside["initContainers"][2]["env"]}
        assert setup["PIP_TARGET"] == "/code/.packages"
        assert expand(setup["A"] or "", {"A": "wrong"}) == "$x $(A)"
        assert "PET_NNODES" not in setup


HF = "hf download o/d --repo-type dataset --local-dir /data --revision v2"


@pytest.mark.parametrize(
    ("source", "command", "image"),
    [
        ("s3://b/a", ["aws", "s3", "sync", "--only-show-errors", "s3://b/a", "/data"], "aws-cli"),
        ("gs://b/a", ["gcloud", "storage", "rsync", "--recursive", "gs://b/a", "/data"], "cloud"),
        (
            "hf://o/d@v2",
            ["sh", "-c", code.HUB.replace("$", "$$"), "sh", *HF.split()],
            "uv",
        ),
    ],
)
def test_data_is_pulled_with_the_tool_of_its_source(
    source: str, command: list[str], image: str
) -> None:
    (step,) = steps(data={"pull": {"source": source, "size": "5Gi", "secret": "s"}})
    assert step["command"] == command
    assert image in step["image"]
    assert step["envFrom"] == [{"secretRef": {"name": "s"}}]
    volumes = pods(render(job(data={"pull": {"source": source, "size": "5Gi"}}), "job"))[0]["spec"]
    assert {"name": "data", "emptyDir": {"sizeLimit": "5Gi"}} in volumes["volumes"]


@pytest.mark.parametrize(
    ("pin", "code_and_words"),
    [
        ("huggingface_hub==1.0 --hash=sha256:{}", (0, f"{HF[3:]}\n")),
        ("huggingface_hub==1.0 --hash=sha256:" + 64 * "0", (1, "Hash mismatch")),
        ("huggingface_hub==1.0", (2, "--require-hashes")),
    ],
)
def test_what_downloads_from_the_hub_has_the_hash_of_its_lock(
    pin: str, code_and_words: tuple[int, str], tmp_path: Path
) -> None:
    """The script is run, with uv and a package of this name that prints what it is called with."""
    wheel = tmp_path / "huggingface_hub-1.0-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: huggingface_hub\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "[console_scripts]\nhf = hub:main\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("hub.py", "import sys\ndef main(): print(*sys.argv[1:])\n")
        for name, text in about.items():
            archive.writestr(f"huggingface_hub-1.0.dist-info/{name}", text)
    done = subprocess.run(
        ["sh", "-c", code.HUB.replace("/tmp/hub", f"{tmp_path}/hub"), "sh", *HF.split()],
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "UV_OFFLINE": "1",
            "UV_FIND_LINKS": str(tmp_path),
            "HUB_LOCK": pin.format(hashlib.sha256(wheel.read_bytes()).hexdigest()),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    expected, words = code_and_words
    assert done.returncode == expected, done
    assert words in done.stdout + done.stderr


def test_the_hubs_lock_has_a_hash_for_each_package() -> None:
    packages = re.split(r"\n(?=\w)", code.hub_lock())[1:]
    assert any(one.startswith("huggingface-hub==") for one in packages)
    assert all(re.match(r"[\w-]+==\S+ .*--hash=sha256:", one, re.DOTALL) for one in packages)
    assert "://" not in code.hub_lock()


def test_a_variable_is_in_a_step_once() -> None:
    """A server-side apply refuses a duplicate name."""
    of_the_pod = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    (step,) = steps(setup=["true"], env=[{"name": n, **of_the_pod} for n in ("HOME", "PIP_TARGET")])
    names = [one["name"] for one in step["env"]]
    assert sorted(names) == sorted(set(names))


def test_ssh_knows_its_user_and_its_key_is_not_in_the_environment() -> None:
    values = job(code={"git": "git@h:a/b.git", "revision": SHA, "secret": "key"})
    (pod,) = pods(render(values, "job"))
    (step,) = pod["spec"]["initContainers"]
    mounts = {one["mountPath"]: one["name"] for one in step["volumeMounts"]}
    assert mounts["/etc/passwd"] == "git-user"
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert volumes[mounts["/etc/git-secret"]]["secret"]["secretName"] == "key"
    (item,) = volumes["git-user"]["downwardAPI"]["items"]
    key = item["fieldRef"]["fieldPath"].split("'")[1]
    assert ":65532:65532:" in pod["metadata"]["annotations"][key]
    assert "key" not in str(step["env"])
    trainer = [one["name"] for one in pod["spec"]["containers"][0]["volumeMounts"]]
    assert not {"git", "git-user"} & set(trainer)


def test_a_revision_that_moves_is_warned_of() -> None:
    def warned(revision: str) -> bool:
        values = job(code={"git": "https://h/a", "revision": revision})
        return "code.revision" in str(planned(values).warnings)

    assert warned("main")
    assert not warned(SHA)
