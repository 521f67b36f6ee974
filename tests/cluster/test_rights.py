"""Every verb on a cluster by a user who has only the rights of `render.py --rbac`.

make test-cluster IMAGE=registry.example/muster:cpu
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s import launchers
from k8s.cluster.client import api, objects
from tests.cluster.conftest import Verbs
from tests.cluster.running import START, are_ready, endless, submitted, trained_to, until
from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def bot(verbs: Verbs, tmp_path: Path) -> Iterator[Verbs]:
    """The verbs as a service account that has no rights yet."""
    if verbs.standin:
        pytest.skip("the stand-in knows no users")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bot"}}
    objects.apply(verbs.cluster, account)
    path = objects.path_of(verbs.cluster, "v1", "ServiceAccount", "bot") + "/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.call(verbs.cluster, "POST", path, body=asked)["status"]["token"]
    connection = verbs.cluster.client.configuration
    cluster: dict[str, Any] = {"server": connection.host}
    if connection.ssl_ca_cert:
        cluster["certificate-authority"] = connection.ssl_ca_cert
    else:
        cluster["insecure-skip-tls-verify"] = not connection.verify_ssl
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "bot", "user": {"token": token}}],
        "contexts": [{"name": "bot", "context": {"cluster": "here", "user": "bot"}}],
        "current-context": "bot",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config), encoding="utf-8")
    yield replace(verbs, kubeconfig=str(file))
    objects.delete(verbs.cluster, account)


def test_the_role_is_enough(verbs: Verbs, bot: Verbs, launcher: str, claim: str) -> None:
    values = endless("mine", claim) | {"tensorboard": {}}
    elastic = "nodes.min" not in launchers.find(launcher).lacks
    if elastic:
        values["nodes"] = {"min": 1, "max": 2}
        values["trainer"]["globalBatch"] = 24
    file = bot.folder / "mine.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    space = bot.cluster.namespace
    command = [sys.executable, "render.py", str(file), "--launcher", launcher]
    rights = [f"--set=namespace={space}", "--exec", "--rbac", f"serviceaccount:{space}:bot"]
    ran = subprocess.run([*command, *rights], cwd=ROOT, capture_output=True, text=True, check=True)
    roles = list(yaml.safe_load_all(ran.stdout))
    bot.does("list", code=64)
    try:
        for role in roles:
            objects.apply(verbs.cluster, role)
        until(lambda: bot.run("list").returncode == 0, 30, lambda: bot.run("list").stderr)
        bot.does("doctor")
        with submitted(bot, launcher, values) as name:
            trained_to(verbs, name, 30)
            bot.does("status", name)
            bot.does("logs", name, "--since", "60")
            bot.does("logs", name, "--save", str(bot.folder / f"bot-{launcher}"))
            bot.does("top", name, "--once")
            bot.does("profile", name)
            bot.does("scale", name, "1", code=0 if elastic else 64)
            board = {
                "app.kubernetes.io/instance": name,
                "app.kubernetes.io/component": "tensorboard",
            }
            until(lambda: are_ready(verbs, board), START, lambda: verbs.status(name))
            with bot.starts("port-forward", name, "--port", "0", said="leads to") as (process, _):
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=30) == 130
            bot.does("suspend", name)
            bot.does("resume", name)
            bot.does("cancel", name)
            bot.does("wait", name, "--timeout", "60", code=143)
        bot.does("gc")
        bot.does("list")
    finally:
        for role in roles:
            objects.delete(verbs.cluster, role)
