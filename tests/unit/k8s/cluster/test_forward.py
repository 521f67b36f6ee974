"""`port-forward` in a real process, with a test API server."""

import signal
import socket
import subprocess
import sys

import pytest

from tests.cluster_objects import Cluster, Run
from tests.conftest import ROOT, clean_environment
from tests.ranks import free_port


@pytest.mark.slow
def test_port_forward_carries_bytes_both_ways_until_interrupted(cluster: Cluster) -> None:
    server, config = cluster
    labels = {"app.kubernetes.io/instance": "digits", "app.kubernetes.io/component": "tensorboard"}
    board = {"metadata": {"name": "board", "labels": labels}, "status": {"phase": "Running"}}
    server.put("v1", "Pod", board)
    port = free_port()
    command = [sys.executable, "-m", "k8s", "port-forward", "digits", "--port", str(port)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=clean_environment(KUBECONFIG=str(config)),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        while "leads to" not in (line := process.stderr.readline()):
            assert line
        for words in (b"hello", b"again"):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(words)
                assert connection.recv(100) == words.upper()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"fail")
            assert connection.recv(100) == b""
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 130
        assert "port 6006 of board: connection refused" in process.stderr.read()


def test_port_forward_says_what_is_missing(run: Run, cluster: Cluster) -> None:
    server, config = cluster
    code, _, err = run(config, "port-forward", "digits")
    assert (code, "job 'digits' has no TensorBoard" in err) == (64, True)
    labels = {"app.kubernetes.io/instance": "digits", "app.kubernetes.io/component": "tensorboard"}
    server.put("v1", "Pod", {"metadata": {"name": "b", "labels": labels}})
    assert run(config, "port-forward", "digits")[0] == 69
    server.put(
        "v1", "Pod", {"metadata": {"name": "b", "labels": labels}, "status": {"phase": "Running"}}
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run(config, "port-forward", "digits", "--port", str(port))
    assert (code, "use 0 for any free port" in err) == (64, True)
