"""A running container of the tested image, by the engine that built it or by `container`.

with running(image, tmp_path, user="54321:54321", out=out, settings={...}) as one: ...
"""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import clean_environment
from tests.image.container import Container
from tests.image.image import Image

_PATH = "PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Running:
    """A running container, named `name` in the engine. Enter or stop it only after its first output."""

    process: subprocess.Popen[str]
    stderr: Path
    engine: str
    name: str

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as a kubelet runs a probe."""
        if self.engine:
            enter = [self.engine, "exec", "--env", _PATH, self.name]
        else:
            namespaces = ("--mount", "--pid", "--ipc", "--root", "--wd")
            variables = ("env", "-i", _PATH, "TRAINER_HEALTH=/tmp/health")
            enter = ["nsenter", f"--target={self._first}", *namespaces, *variables]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False)

    def terminate(self) -> None:
        """Send SIGTERM to the container's process 1."""
        if self.engine:
            command = [self.engine, "kill", "--signal", "TERM", self.name]
            subprocess.run(command, capture_output=True, check=True)
        else:
            os.kill(self._first, signal.SIGTERM)

    @property
    def _first(self) -> int:
        (first,) = psutil.Process(self.process.pid).children()
        return int(first.pid)

    def python(self, code: str) -> Any:
        """Return the JSON that a program inside prints."""
        ran = self.inside("python", "-c", f"import json, os; print(json.dumps({code}))")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events as they come; fail with standard error at any other line."""
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, ""):
            assert line.startswith("{"), line + self.stderr.read_text(encoding="utf-8")
            yield json.loads(line)

    def end(self) -> int:
        return self.process.wait(120)


@contextlib.contextmanager
def running(
    image: Image, folder: Path, *, user: str, out: Path, settings: dict[str, str]
) -> Iterator[Running]:
    """Start the image as `user` with a read-only root, a /tmp, and `out` at /out."""
    name = f"muster-test-{os.getpid()}"
    settings = {"OMP_NUM_THREADS": "1"} | settings
    command = (
        _by_engine(image, name, user=user, out=out, settings=settings)
        if image.engine
        else as_container(
            image,
            user=user,
            read_only=True,
            tmpfs=["/tmp"],
            mounts=[(str(out), "/out", False)],
            environment=settings,
        ).start(folder / "spec.json")
    )
    stderr = folder / "stderr"
    with stderr.open("w") as file:
        process = subprocess.Popen(
            command,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    try:
        yield Running(process, stderr, image.engine, name)
    finally:
        if image.engine:
            subprocess.run([image.engine, "rm", "--force", name], capture_output=True, check=False)
        process.kill()
        process.wait()


def _by_engine(
    image: Image, name: str, *, user: str, out: Path, settings: dict[str, str]
) -> list[str]:
    variables = [f"--env={key}={value}" for key, value in settings.items()]
    mount = f"--mount=type=bind,source={out},target=/out"
    closed = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")
    return [
        *(image.engine, "run", "--name", name, "--user", user, *closed),
        *("--tmpfs=/tmp", mount, *variables, image.tag),
    ]


def as_container(image: Image, **changes: Any) -> Container:
    """Return the image's container as its configuration describes it, with changes."""
    environment = image.environment | {"OMP_NUM_THREADS": "1"} | changes.pop("environment", {})
    return Container(
        **{
            "root": str(image.root),
            "command": image.config["Entrypoint"],
            "environment": environment,
            "user": image.config["User"],
            "workdir": image.config["WorkingDir"],
        }
        | changes
    )
