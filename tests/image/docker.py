"""A stand-in for docker without a daemon, for `make docker-run` and `make compose-run`.

It takes every option that the kit's scripts use and refuses any other. The image is always the one that
MUSTER_TEST_IMAGE describes.

    python -m tests.image.docker run [OPTIONS] IMAGE
    python -m tests.image.docker compose -f FILE up --abort-on-container-failure
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from tests.faults.hosts import network
from tests.image.container import Container


def _image() -> dict[str, Any]:
    """Return root, entrypoint, environment and user of the image, as fields of Container."""
    found: dict[str, Any] = json.loads(Path(os.environ["MUSTER_TEST_IMAGE"]).read_text("utf-8"))
    return found


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="docker run", allow_abbrev=False)
    for switch in ("--rm", "--interactive", "--tty", "--read-only"):
        parser.add_argument(switch, action="store_true")
    for option in ("--env", "--mount", "--tmpfs", "--ulimit", "--cap-drop", "--security-opt"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("--shm-size", type=int, default=64 << 20)
    for option in ("--name", "--user", "--stop-timeout"):
        parser.add_argument(option)
    parser.add_argument("image")
    asked = parser.parse_args(arguments)
    image = _image()
    one = Container(
        **image
        | {"environment": image["environment"] | _variables(asked.env)}
        | ({"user": asked.user} if asked.user else {}),
        read_only=asked.read_only,
        tmpfs=[text.partition(":")[0] for text in asked.tmpfs],
        shm_bytes=asked.shm_size,
        mounts=[_mount(text) for text in asked.mount],
    )
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(one.start(Path(folder, "spec.json")), check=False).returncode


def _variables(texts: list[str]) -> dict[str, str]:
    """Return the variables of `--env`; a name without a value is a variable of the caller."""
    named = (text.partition("=") for text in texts)
    return {name: value if equals else os.environ[name] for name, equals, value in named}


def _mount(text: str) -> tuple[str, str, bool]:
    parts = dict(one.partition("=")[::2] for one in text.split(","))
    assert parts.pop("type") == "bind"
    read_only = parts.pop("readonly", None) is not None
    return parts["source"], parts["target"], read_only


_SERVICE = {
    *("image", "user", "environment", "read_only", "tmpfs", "shm_size", "ulimits", "cap_drop"),
    *("security_opt", "stop_grace_period", "restart", "volumes"),
}


def _compose(file: Path) -> int:
    """Start every service on its own host; the first one that fails ends all."""
    services = yaml.safe_load(file.read_text("utf-8"))["services"]
    with network() as net, tempfile.TemporaryDirectory() as folder:
        hosts = {name: net.host() for name in services}
        addresses = {name: host.address for name, host in hosts.items()}
        running = []
        for name, service in services.items():
            assert service.keys() <= _SERVICE, service.keys() - _SERVICE
            one = _service(service, file, name, addresses)
            prefix = ("ip", "netns", "exec", hosts[name].name)
            command = one.start(Path(folder, f"{name}.json"), *prefix)
            running.append(subprocess.Popen(command))
        code = 0
        while any(one.poll() is None for one in running):
            code = code or next((one.returncode for one in running if one.returncode), 0)
            if code:
                for host in hosts.values():
                    for pid in host.processes():
                        os.kill(pid, signal.SIGTERM)
            time.sleep(0.2)
        return code or max(one.returncode for one in running)


def _service(
    service: dict[str, Any], file: Path, name: str, addresses: dict[str, str]
) -> Container:
    image = _image()
    dollars = re.compile(r"\$\{(\w+):\?[^}]*\}")
    user = dollars.sub(lambda found: os.environ[found[1]], service["user"])
    own = {key: str(value).replace("$$", "$") for key, value in service["environment"].items()}
    return Container(
        **(image | {"environment": image["environment"] | own, "user": user}),
        read_only=service["read_only"],
        tmpfs=[text.partition(":")[0] for text in service["tmpfs"]],
        shm_bytes=service["shm_size"],
        mounts=[
            (str(file.parent / one["source"]), one["target"], one.get("read_only", False))
            for one in service["volumes"]
        ],
        hostname=name,
        hosts=addresses,
    )


def main(arguments: list[str]) -> int:
    """Do what docker would and return its exit code."""
    match arguments:
        case ["run", *rest]:
            return _run(rest)
        case ["compose", "up", "--help"]:
            print("--abort-on-container-failure")
            return 0
        case ["compose", "-f", file, "up", "--abort-on-container-failure"]:
            return _compose(Path(file).absolute())
    raise SystemExit(f"docker stand-in: {' '.join(arguments)}: not one of the kit's commands")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
