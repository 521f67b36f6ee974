"""Starts the stand-in cluster, runs a command with its KUBECONFIG, and exits with its exit code.

python -m tests.standin make test-cluster
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.conftest import in_thread
from tests.faults.hosts import network, why_not
from tests.standin import jobs, jobsets, pytorchjobs, volcano
from tests.standin.admission import check
from tests.standin.http import serving
from tests.standin.kubelet import NODE, Kubelet
from tests.standin.objects import now
from tests.standin.server import Server

CONTROLLERS = (jobsets.sync, jobs.sync, pytorchjobs.sync, volcano.sync)
_PAUSE = 0.05  # seconds between two rounds of the controllers


@contextmanager
def standin(folder: Path) -> Iterator[Path]:
    """Yield the kubeconfig of a stand-in cluster that runs until the block ends."""
    server = Server(identity=lambda _: {"uid": str(uuid.uuid4()), "creationTimestamp": now()})
    server.release = "v1.34.0-standin"
    server.admit = partial(check, server)
    server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    with network() as net, serving(server, folder, namespace=None) as config:
        kubelet = Kubelet(server, folder, net)
        server.log, server.enter = kubelet.log, kubelet.enter
        rounds: list[Callable[[], object]] = [
            *(partial(sync, server) for sync in CONTROLLERS),
            kubelet.sync,
        ]

        def control(stop: threading.Event) -> None:
            while not stop.wait(_PAUSE):
                for sync in rounds:
                    try:
                        sync()
                    except Exception:  # noqa: BLE001  # the others go on, and it is tried again
                        traceback.print_exc()

        try:
            with in_thread(control):
                yield config
        finally:
            kubelet.close()


def main(command: list[str]) -> int:
    """Run a command with a stand-in cluster and return its exit code.

    On SIGTERM the pods, their hosts and the command end with it.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if reason := why_not():
        print(f"stand-in cluster: {reason}", file=sys.stderr)
        return 69
    with tempfile.TemporaryDirectory(prefix="standin-") as folder:
        Path(folder).chmod(0o755)
        with standin(Path(folder)) as config:
            environment = os.environ | {"KUBECONFIG": str(config)}
            process = subprocess.Popen(command, env=environment, process_group=0)
            try:
                return process.wait()
            finally:  # the whole group, because make ends only its shell
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
