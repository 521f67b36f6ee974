"""Forward a port of this machine to a pod, through the cluster's API.

forward(cluster, "digits-tensorboard-x", remote=6006, local=6006, ready=print)
"""

import contextlib
import select
import socket
import threading
from collections.abc import Callable

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

from k8s.base.errors import config_error, in_one_line
from k8s.cluster.client import objects
from k8s.cluster.client.api import Cluster
from trainer.config.exits import Exit, Fault

_INTERVAL = 0.5  # seconds between two checks for the end
_OPENING = threading.Lock()  # the client library patches itself while it opens a connection


def tensorboard(cluster: Cluster, name: str) -> str:
    """Return the pod of a job's TensorBoard. Raises Fault(64) if it has none, 69 if none is running."""
    labels = {"app.kubernetes.io/instance": name, "app.kubernetes.io/component": "tensorboard"}
    found = objects.find(cluster, "v1", "Pod", labels)
    if not found:
        raise config_error(
            f"{cluster.where}: job {name!r} has no TensorBoard; add `tensorboard: {{}}` to its job file"
        )
    for pod in found:
        if pod.get("status", {}).get("phase") == "Running":
            running: str = pod["metadata"]["name"]
            return running
    phase = found[0].get("status", {}).get("phase", "Pending")
    raise Fault(
        Exit.PEER, f"{cluster.where}: pod {found[0]['metadata']['name']} is {phase}; try again"
    )


def forward(
    cluster: Cluster,
    pod: str,
    *,
    remote: int,
    local: int,
    ready: Callable[[int], None],
    failed: Callable[[str], None],
) -> None:
    """Forward connections from port `local` of this machine to a pod's port, until interrupted.

    Calls `ready` with the local port; if `local` is 0, that is any free port. Calls `failed` with the
    error of each connection that could not be forwarded. Raises Fault(64) when the port is taken.
    """
    stopping = threading.Event()
    threads: list[threading.Thread] = []
    try:
        listener = socket.create_server(("127.0.0.1", local))
    except OSError as error:
        raise config_error(f"--port {local}: {error.strerror}; use 0 for any free port") from None
    listener.settimeout(_INTERVAL)
    try:
        ready(listener.getsockname()[1])
        while True:
            with contextlib.suppress(TimeoutError):
                ours, _ = listener.accept()
                thread = threading.Thread(
                    target=_copy, args=(cluster, pod, remote, ours, stopping, failed), daemon=True
                )
                threads = [*(one for one in threads if one.is_alive()), thread]
                thread.start()
    finally:
        stopping.set()
        listener.close()
        for thread in threads:
            thread.join(timeout=5)


def _copy(
    cluster: Cluster,
    pod: str,
    remote: int,
    ours: socket.socket,
    stopping: threading.Event,
    failed: Callable[[str], None],
) -> None:
    """Copy the bytes of one connection both ways, until either side ends it."""
    with contextlib.closing(ours):
        try:
            core = client.CoreV1Api(client.ApiClient(cluster.client.configuration))
            with _OPENING:
                tunnel = portforward(
                    core.connect_get_namespaced_pod_portforward,
                    pod,
                    cluster.namespace,
                    ports=str(remote),
                    _request_timeout=cluster.timeout,
                )
        except (ApiException, OSError, ValueError) as error:
            failed(
                f"port {remote} of {pod}: {in_one_line(getattr(error, 'reason', None) or error)}"
            )
            return
        theirs = tunnel.socket(remote)
        with contextlib.closing(theirs), contextlib.suppress(OSError):
            other = {ours: theirs, theirs: ours}
            while not stopping.is_set():
                ready, _, _ = select.select([ours, theirs], [], [], _INTERVAL)
                for side in ready:
                    piece = side.recv(65536)
                    if not piece:
                        if problem := tunnel.error(remote):  # e.g. nothing listens in the pod yet
                            failed(f"port {remote} of {pod}: {in_one_line(problem)}")
                        return
                    other[side].sendall(piece)
