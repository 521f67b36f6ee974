"""The verbs of `python -m k8s` on untrusted bytes: a kubeconfig, and the answers of an API server.

read_kubeconfig(KUBECONFIGS[0], folder); read_answer(answers()[0], folder)
"""

import io
import json
import sys
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from unittest import mock

import typer
import urllib3
from kubernetes import client
from kubernetes.config import kube_config

from k8s.__main__ import main as verbs
from k8s.cli.verbs import common
from k8s.cluster.client.api import Cluster
from tests.cluster_objects import FAILED, fill
from tests.standin.api import respond
from tests.standin.server import Refusal, Server

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


_built = cache(typer.main.get_command)  # the command's parts are the same for every input


def _verb(patched: AbstractContextManager[object], *arguments: str) -> None:
    """Run a verb of `python -m k8s` in this process; it must end with one of our exit codes."""
    with (
        patched,
        mock.patch.object(typer.main, "get_command", _built),
        mock.patch.object(sys, "argv", ["k8s", "--timeout", "0.1", *arguments]),
        redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")),
        redirect_stderr(io.TextIOWrapper(io.BytesIO(), "utf-8")),
    ):
        verbs()


def read_kubeconfig(data: bytes, folder: Path) -> None:
    # Nothing listens there, and its commands must not run.
    if b"exec" not in data and b"auth-provider" not in data:
        config = folder / "config"
        config.write_bytes(data)
        _verb(mock.patch.object(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(config)), "list")


def read_answer(data: bytes, _: Path) -> None:
    """Answer each request for objects with the input: its first line has the status."""
    cluster = Cluster(client.ApiClient(client.Configuration("http://api")), "lab", "here", 0.1)
    cluster.client.rest_client.pool_manager = _Api(data)
    for arguments in (["list"], ["status", "digits"]):
        _verb(mock.patch.object(common, "connect", return_value=cluster), *arguments)


class _Api(urllib3.PoolManager):
    """A cluster's API without sockets, which would take most of the time of an input."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        line, _, self.body = data.partition(b"\n")
        place, _, status = line.decode(errors="replace").partition(" ")
        self.place = f"/{place}"
        self.status = int(status) if status.isdecimal() and len(status) == 3 else 200

    def request(  # type: ignore[override]  # as it is called here
        self, method: str, url: str, *, preload_content: bool, **_: object
    ) -> urllib3.HTTPResponse:
        target = url.removeprefix("http://api")
        hostile = self.place in target
        status, body = (self.status, self.body) if hostile else _answer(method, target)
        return urllib3.HTTPResponse(
            io.BytesIO(body), status=status, preload_content=preload_content
        )


@cache
def _cluster() -> Server:
    server = Server()
    fill(server, **FAILED)
    return server


@cache
def _answer(method: str, target: str) -> tuple[int, bytes]:
    try:
        found = respond(_cluster(), method, target, None)
    except Refusal as refusal:
        return refusal.status, json.dumps({"message": refusal.message}).encode()
    return 200, json.dumps(found).encode() if isinstance(found, dict) else b"".join(found)


def answers() -> list[bytes]:
    found = [b'pods? 403\n{"kind": "Status", "message": "User \\"me\\" cannot list pods"}']
    for path, one in _cluster().objects.items():
        plural = path.split("/")[-2]
        found.append(f"{plural}?\n{json.dumps({'items': [one], 'metadata': {}})}".encode())
        found.append(f"{plural}/\n{json.dumps(one)}".encode())
    return found
