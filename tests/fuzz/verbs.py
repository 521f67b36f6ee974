"""The verbs of `python -m k8s` on bytes of strangers: a kubeconfig, and what an API server answers.

read_kubeconfig(KUBECONFIGS[0], folder); read_answer(answers()[0], folder)
"""

import atexit
import io
import json
import shutil
import sys
import tempfile
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from multiprocessing import Process
from pathlib import Path
from unittest import mock

from kubernetes.config import kube_config

from k8s.__main__ import main as verbs
from tests.cluster_objects import FAILED, fill
from tests.standin.http import serving
from tests.standin.server import Answer, Server

KUBECONFIGS = (
    b"""apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: "http://127.0.0.1:9", insecure-skip-tls-verify: true}}]
users: [{name: me, user: {token: abc}}]
contexts: [{name: c, context: {cluster: here, user: me, namespace: lab}}]
current-context: c
""",
    b"""apiVersion: v1
kind: Config
clusters:
- name: here
  cluster:
    server: "https://127.0.0.1:9"
    certificate-authority-data: LS0tCg==
    proxy-url: "http://127.0.0.1:9"
    tls-server-name: a
users:
- name: me
  user: {username: a, password: b, client-certificate-data: LS0tCg==, client-key-data: LS0tCg==}
- {name: you, user: {tokenFile: /dev/null, client-certificate: /dev/null, client-key: /dev/null}}
contexts:
- {name: c, context: {cluster: here, user: me, namespace: lab}}
- {name: d, context: {cluster: here, user: you}}
current-context: c
""",
)


def _verb(config: Path, *arguments: str) -> None:
    """Run a verb of `python -m k8s` here, as it ends: with a code of ours, and no exception."""
    with (
        mock.patch.object(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(config)),
        mock.patch.object(sys, "argv", ["k8s", *arguments]),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        verbs()


def read_kubeconfig(data: bytes, folder: Path) -> None:
    # Nothing listens there, and no command of it is to run.
    if b"exec" not in data and b"auth-provider" not in data:
        (folder / "config").write_bytes(data)
        _verb(folder / "config", "--timeout", "0.1", "list")


def read_answer(data: bytes, _: Path) -> None:
    """Answer with it wherever a cluster would show objects of a kind."""
    config = _cluster()
    (config.parent / "answer").write_bytes(data)
    for arguments in (["list"], ["status", "digits"]):
        _verb(config, "--timeout", "1", *arguments)


@cache
def _cluster() -> Path:
    """Start a cluster's API in a process of its own, whose threads count elsewhere."""
    folder = Path(tempfile.mkdtemp(prefix="muster-fuzz-api-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Process(target=_serve, args=(folder,), daemon=True).start()
    end = time.monotonic() + 30
    while not (folder / "ready").exists():
        assert time.monotonic() < end, "the cluster's API has not started in 30 s"
        time.sleep(0.01)
    return folder / "kubeconfig"


def _serve(folder: Path) -> None:
    server = Server()
    fill(server, **FAILED)

    def answer(_: str, target: str) -> Answer | None:
        kind, _, body = (folder / "answer").read_bytes().decode(errors="replace").partition("\n")
        return (200, {}, body) if f"/{kind}" in target else None

    server.answer = answer
    with serving(server, folder):
        (folder / "ready").touch()
        threading.Event().wait()


def answers() -> list[bytes]:
    _cluster()  # before the limits of a run
    server = Server()
    fill(server, **FAILED)
    found = []
    for path, one in server.objects.items():
        plural = path.split("/")[-2]
        found.append(f"{plural}?\n{json.dumps({'items': [one], 'metadata': {}})}".encode())
        found.append(f"{plural}/\n{json.dumps(one)}".encode())
    return found
