"""Starts the stand-in cluster and runs a command with its KUBECONFIG; ends as the command does.

python -m tests.standin make test-cluster
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.apiserver import kubeconfig
from tests.faults.hosts import network, why_not
from tests.standin import jobs, jobsets, pytorchjobs, trainjobs, volcano
from tests.standin.kubelet import NODE, Kubelet
from tests.standin.server import Server
from tests.standin.store import Store

_PAUSE = 0.05  # seconds between two looks at everything
_CONTROLLERS = (trainjobs.sync, jobsets.sync, jobs.sync, pytorchjobs.sync, volcano.sync)


@contextmanager
def standin(folder: Path) -> Iterator[Path]:
    """Yield the kubeconfig of a stand-in cluster that is there until the block ends."""
    store = Store()
    store.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    with network() as net:
        kubelet = Kubelet(store, folder, net)
        server = Server(store, kubelet.logs)
        stop = threading.Event()
        syncs: list[Callable[[], None]] = [partial(one, store) for one in _CONTROLLERS]
        syncs.append(kubelet.sync)

        def control() -> None:
            while not stop.wait(_PAUSE):
                for one in syncs:
                    try:
                        one()
                    except Exception:  # noqa: BLE001  # said, and tried again: others go on
                        traceback.print_exc()

        threads = [threading.Thread(target=one) for one in (server.serve_forever, control)]
        for thread in threads:
            thread.start()
        try:
            yield kubeconfig(folder, f"http://127.0.0.1:{server.server_port}", namespace=None)
        finally:
            stop.set()
            server.shutdown()
            for thread in threads:
                thread.join()
            server.server_close()
            kubelet.close()


def main(command: list[str]) -> int:
    """Run a command in sight of a stand-in cluster and return its exit code.

    Told to stop, it takes pods, hosts and the command with it.
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
            finally:  # of all that it has started: make ends its shell, and no more
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
