"""The CPU image, really built: what it has and what not, and that it trains as any user."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, run_command, wait_for
from tests.image.conftest import Built
from tests.image.image import LOCK, REVISION, VERSION, Image
from tests.image.running import as_container, running

# The first of these tests builds the image, which takes long on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

OWN_BYTES = 150 * 10**6


def files(root: Path, *below: str) -> Iterator[Path]:
    for place in below or ("",):
        for folder, _, names in os.walk(root / place):
            yield from (Path(folder, name) for name in names)


def site(image: Image) -> Path:
    (found,) = image.root.glob("opt/venv/lib/python3*/site-packages")
    return found


def test_its_configuration_has_user_command_labels_and_health_check(built: Built) -> None:
    config = built.image.config
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["tini", "--", "python", "-m", "trainer.launch"]
    assert not config.get("Cmd")
    assert config["WorkingDir"] == "/workspace"
    assert config["Labels"].items() >= {
        ("org.opencontainers.image.version", VERSION),
        ("org.opencontainers.image.revision", REVISION),
        ("org.opencontainers.image.licenses", "Apache-2.0"),
        ("muster.lock.sha256", LOCK),
    }
    assert config["Healthcheck"]["Test"] == ["CMD", "python", "-m", "trainer.health"]


def test_it_holds_nothing_that_installs_or_compiles_and_no_cache(built: Built) -> None:
    root = built.image.root
    tools = r"(pip[\d.]*|uv|uvx|(.*-)?(gcc|g\+\+|cc|c\+\+|clang|ld|make)(-\d+)?)"
    bins = ("bin", "usr/bin", "usr/local/bin", "opt/venv/bin")
    assert [one.name for one in files(root, *bins) if re.fullmatch(tools, one.name)] == []
    installers = {"pip", "ensurepip", "uv"}
    packages = [p for p in root.glob("**/python3*/**/__init__.py") if p.parent.name in installers]
    assert [one for one in packages if "torch" not in str(one)] == []
    assert not (root / "opt/uv").exists()
    left = [
        *files(root, "root", "tmp", "run", "home", "var/cache/apt/archives", "var/lib/apt/lists")
    ]
    expected = {".bashrc", ".profile", "lock"}
    assert [str(one) for one in left if one.name not in expected and one.stat().st_size] == []
    assert not any(one.name in (".cache", "__pypackages__") for one in root.glob("*/*"))


def test_it_holds_no_secret(built: Built) -> None:
    image = built.image
    names = r"(id_\w+|.*\.(key|p12|pfx)|\.env|\.netrc|\.git|pip\.conf|uv\.toml|credentials)"
    own = [*files(image.root, "opt", "workspace", "root", "home", "tmp", "run")]
    assert [str(one) for one in own if re.fullmatch(names, one.name)] == []
    allowed = {"PATH", "HOME", "USER", "TRAINER_OUT", "TRAINER_HEALTH", "PYTORCH_ALLOC_CONF"}
    prefixes = ("PYTHON", "NVIDIA_", "LANG", "GPG_KEY")  # the last two are the base's
    assert [n for n in image.environment if n not in allowed and not n.startswith(prefixes)] == []


def test_anyone_may_read_it_and_nobody_but_root_write_it(built: Built) -> None:
    wrong = []
    for path in files(built.image.root, "opt/venv", "workspace"):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and (mode & 0o444 != 0o444 or mode & 0o022):
            wrong.append(str(path))
    assert wrong == []


def test_every_module_has_its_bytecode(built: Built) -> None:
    """A read-only root cannot store it: each start would compile hundreds of modules again."""
    tag = f"cpython-{site(built.image).parent.name.removeprefix('python').replace('.', '')}"
    modules = [p for p in files(built.image.root, "workspace/trainer") if p.suffix == ".py"]
    for package in ("torch", "numpy", "pydantic", "rich"):
        modules += [p for p in files(site(built.image), package) if p.suffix == ".py"]
    assert len(modules) > 1000
    missing = [
        m for m in modules if not (m.parent / "__pycache__" / f"{m.stem}.{tag}.pyc").exists()
    ]
    # Files that are templates, or for another version of Python.
    assert len(missing) <= 0.001 * len(modules), missing


def test_its_own_layers_are_small(built: Built) -> None:
    """Our own part: the code, and packages that neither torch nor torchvision needs."""
    lock = (ROOT / "docker/requirements-torch.txt").read_text(encoding="utf-8")
    of_torch = set(re.findall(r"^([a-z0-9-]+)==", lock, flags=re.MULTILINE))
    own = sum(path.lstat().st_size for path in files(built.image.root, "workspace"))
    seen = set()
    for package in metadata.distributions(path=[str(site(built.image))]):
        name = package.name.lower().replace("_", "-")
        seen.add(name)
        if name not in of_torch:
            tops = {Path(str(file)).parts[0] for file in package.files or ()} - {".."}
            for top in tops:
                place = site(built.image) / top
                inside = files(place) if place.is_dir() else [place]
                own += sum(path.lstat().st_size for path in inside)
    assert {"pydantic", "scikit-learn", "torch"} <= seen
    print(f"own layers: {own / 1e6:.0f} MB, TORCH_BACKEND={built.image.backend}")
    assert own < OWN_BYTES


def test_a_change_of_code_makes_one_small_layer(built: Built) -> None:
    before, after = built.image, built.changed
    assert before.layers[:-1] == after.layers[:-1]
    assert before.layers[-1] != after.layers[-1]
    assert sum(path.stat().st_size for path in files(after.root, "workspace")) < 5 * 10**6
    assert after.config["Labels"]["org.opencontainers.image.revision"] == "f" * 40


def test_any_user_trains_on_a_read_only_root_and_a_stop_saves(built: Built, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    settings = {
        "TRAINER_OUT": "/out",
        "TRAINER_EPOCHS": "100000",
        "TRAINER_EVAL_STEPS": "20",
        "PET_NPROC_PER_NODE": "2",
        "TRAINER_MODE": "ddp",
    }
    with running(built.image, tmp_path, user="54321:54321", out=out, settings=settings) as one:
        events = one.events()
        assert any(event["event"] == "eval" for event in events), one.stderr.read_text()
        assert one.python("os.stat('/proc/1').st_uid") == 54321
        assert one.inside("python", "-m", "trainer.health").returncode == 0
        assert one.inside("touch", "/workspace/new").returncode != 0
        # An orphan: process 1 adopts it and must not keep it as a zombie.
        begun = one.inside("sh", "-c", "(sleep 2; exit 3) >/dev/null 2>&1 & echo $!")
        orphan = f"os.path.exists('/proc/{int(begun.stdout)}')"
        wait_for(lambda: not one.python(orphan))
        one.terminate()
        *_, last = events
        assert one.end() == 143, one.stderr.read_text()
    assert (last["kind"], last["signal"]) == ("stopped", "SIGTERM")
    assert last["checkpoint"].startswith("/out/checkpoints/step-")
    kept = Path(f"{tmp_path}{last['checkpoint']}").stat()
    assert kept.st_uid == 54321 or os.geteuid() != 0  # without a daemon, users have other ids


# Long enough to detect ranks that do not communicate.
EPOCHS = 8


def summaries(folder: Path) -> Iterator[dict[str, Any]]:
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "summary":
            yield event


def docker(image: Image, folder: Path) -> dict[str, str]:
    """Return the variables with which `docker` is the program that runs the image."""
    if image.engine:
        return {}
    script = folder / "docker"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.image.docker "$@"\n')
    script.chmod(0o755)
    one = as_container(image)
    kept = ("root", "command", "environment", "user", "workdir")
    (folder / "image.json").write_text(json.dumps({key: getattr(one, key) for key in kept}))
    path = f"{folder}:{os.environ['PATH']}"
    return {"PATH": path, "MUSTER_TEST_IMAGE": str(folder / "image.json")}


def has_compose() -> bool:
    """Return whether docker's Compose is new enough for `make compose-run`."""
    command = ["docker", "compose", "up", "--help"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return tried.returncode == 0 and "--abort-on-container-failure" in tried.stdout


def test_make_run_docker_and_compose_end_with_the_same_accuracy(
    built: Built, tmp_path: Path
) -> None:
    """One job file and seed: as processes, in one container, and in one container per node."""
    name = f"image-test-{os.getpid()}"
    job = tmp_path / "job.yaml"
    example = (ROOT / "k8s/jobs/02-digits-ddp.yaml").read_text(encoding="utf-8")
    example = example.replace("name: digits-ddp", f"name: {name}")
    job.write_text(example.replace("epochs: 30", f"epochs: {EPOCHS}\n  seed: 5"))
    environment = docker(built.image, tmp_path)
    folder = ROOT / "build" / name
    runs = {"run": "run", "docker-run": "docker", "compose-run": f"{name}-run"}
    if built.image.engine and not has_compose():
        del runs["compose-run"]
    try:
        accuracy = {}
        for target, place in runs.items():
            command = ["make", target, f"JOB={job}", "LAUNCHERS=", f"IMAGE={built.image.tag}"]
            done = run_command(command, env=environment)
            assert done.returncode == 0, f"{target}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
            (summary,) = summaries(folder / place)
            assert (summary["world_size"], summary["mode"]) == (2, "ddp")
            accuracy[target] = summary["accuracy"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(accuracy)
    assert min(accuracy.values()) > 0.9
    assert max(accuracy.values()) - min(accuracy.values()) <= 0.005
