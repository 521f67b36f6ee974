"""A cluster's API without a cluster, and the verbs in this process against it."""

import logging
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from tests.cluster_objects import Cluster, Run
from tests.standin.http import serving
from tests.standin.server import Server

_built = cache(typer.main.get_command)  # the command's parts are the same for every call


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(config: Path, *arguments: str) -> tuple[int, str, str]:
        from k8s.__main__ import main

        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config)
        )
        monkeypatch.setattr(sys, "argv", ["k8s", *arguments])
        monkeypatch.setattr(typer.main, "get_command", _built)
        monkeypatch.setattr(logging.getLogger(), "handlers", [])  # so that main sets up its own
        code = main()
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    server = Server()
    with serving(server, tmp_path) as config:
        yield server, config
