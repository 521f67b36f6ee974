"""The words of every rank: read once or followed, each line with the node it comes from."""

import threading
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from k8s.cluster import api
from k8s.cluster.api import Cluster
from k8s.cluster.state import Pod

_SILENCE = 3600  # seconds that a followed log may say nothing before its connection is given up


def tail(cluster: Cluster, pod: str, *, lines: int) -> list[str]:
    """Return the last lines of a pod's log, none when its container has not started."""
    try:
        response = _open(cluster, pod, {"tailLines": lines}, timeout=cluster.timeout)
    except ApiException:
        return []
    with response:
        text: str = response.read().decode(errors="replace")
    return text.splitlines()


def _open(cluster: Cluster, pod: str, query: Mapping[str, object], *, timeout: float) -> Any:
    return cluster.client.call_api(
        api.path_of(cluster, "v1", "Pod", pod) + "/log",
        "GET",
        query_params=list(query.items()),
        auth_settings=["BearerToken"],
        _return_http_data_only=True,
        _preload_content=False,
        _request_timeout=(cluster.timeout, timeout),
    )


def prefix(pod: Pod) -> str:
    """Return what a pod's lines begin with: its node, or its name where that is not known."""
    return f"[node {pod.node}] " if pod.node is not None else f"[{pod.name}] "


class Following:
    """The logs of several pods at once, each read by a thread of its own.

    `close` ends every thread and connection. A pod that is added a second time is not read again.
    """

    def __init__(self, cluster: Cluster, *, query: Mapping[str, object]) -> None:
        self._cluster = cluster
        self._query = query
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._readers: dict[str, threading.Thread] = {}
        self._responses: list[Any] = []
        self._closing = threading.Event()

    def add(self, pod: Pod) -> None:
        """Begin to read a pod's log."""
        if pod.name not in self._readers:
            reader = threading.Thread(target=self._read, args=(pod,), daemon=True)
            self._readers[pod.name] = reader
            reader.start()

    @property
    def reading(self) -> bool:
        """Whether any log has not come to its end."""
        return any(reader.is_alive() for reader in self._readers.values())

    def drain(self, show: Callable[[str], None], *, seconds: float) -> None:
        """Show the lines that come within `seconds`."""
        try:
            while True:
                show(self._lines.get(timeout=seconds))
        except Empty:
            return

    def close(self) -> None:
        """End every connection, and with it the thread that reads it."""
        self._closing.set()
        for response in [*self._responses]:
            response.close()
        for reader in self._readers.values():
            reader.join(timeout=5)

    def _read(self, pod: Pod) -> None:
        try:
            response = _open(self._cluster, pod.name, self._query, timeout=_SILENCE)
        except (ApiException, urllib3.exceptions.HTTPError) as error:
            self._lines.put(f"{prefix(pod)}(no log: {' '.join(str(error).split())[:120]})")
            return
        self._responses.append(response)
        rest = b""
        try:
            while not self._closing.is_set() and (piece := response.read1(65536)):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._lines.put(prefix(pod) + line.decode(errors="replace"))
        except (OSError, ValueError, urllib3.exceptions.HTTPError):
            pass  # closed from here, or cut off: what came is shown
        finally:
            if rest:
                self._lines.put(prefix(pod) + rest.decode(errors="replace"))
            response.close()
