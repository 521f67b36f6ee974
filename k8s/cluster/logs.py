"""The words of every rank: read once or followed, each line with the node and the rank that says it.

follow(cluster, look(cluster, "digits"), print, query={"follow": "true"})
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import urllib3

from k8s.cluster import jobs
from k8s.cluster.client import api, objects
from k8s.cluster.client.api import Cluster, Missing, Refused
from k8s.cluster.jobs import Job
from k8s.cluster.state import Pod
from trainer.config import lines as said
from trainer.config.exits import Exit, Fault

_SILENCE = 600  # seconds that a followed log may say nothing before its connection is made anew
_LOOK = 1.0  # seconds between two looks at which pods there are
_BROKEN = (OSError, ValueError, urllib3.exceptions.HTTPError)


def tail(cluster: Cluster, pod: Pod, *, lines: int) -> list[str]:
    """Return the last lines of a pod's log, none when its container has not started."""
    return text(cluster, pod.name, pod.container, {"tailLines": lines}).splitlines()


def text(cluster: Cluster, pod: str, container: str, query: Mapping[str, object]) -> str:
    """Return a container's log, nothing when there is none: not started, or gone.

    Raises as `api.call` does.
    """
    path = _path(cluster, pod)
    try:
        response = api.stream(cluster, path, _of(container, query), silence=cluster.timeout)
    except (Refused, Missing):
        return ""
    with contextlib.closing(response):
        try:
            return response.read().decode(errors="replace")
        except urllib3.exceptions.HTTPError as error:
            words = f"{cluster.where}: GET {path}: {api.in_one_line(error)}"
            raise Fault(Exit.PEER, words) from None


def _path(cluster: Cluster, pod: str) -> str:
    return objects.path_of(cluster, "v1", "Pod", pod) + "/log"


def _of(container: str, query: Mapping[str, object]) -> dict[str, object]:
    return {**query, "container": container} if container else dict(query)


@dataclass(frozen=True)
class Wanted:
    """Which nodes and ranks were asked for: all, when neither was.

    `anywhere` says that a job's ranks may be in any of its pods, as those of an elastic one.
    """

    nodes: frozenset[int] = frozenset()
    ranks: frozenset[int] = frozenset()
    anywhere: bool = False

    def pod(self, pod: Pod) -> bool:
        """Return whether a pod may have lines that were asked for."""
        some = self.anywhere or not self.ranks.isdisjoint(pod.ranks)
        return self._all or pod.node in self.nodes or (bool(self.ranks) and some)

    def line(self, pod: Pod, rank: int | None) -> bool:
        """Return whether a pod's line was asked for; `rank` is None where it says none.

        It is the rank's then where a pod has only one, and the launcher's where it has several.
        """
        if self._all or pod.node in self.nodes:
            return True
        return rank in self.ranks if rank is not None else len(pod.ranks) == 1

    @property
    def _all(self) -> bool:
        return not self.nodes and not self.ranks


ALL = Wanted()


def wanted(cluster: Cluster, job: Job, nodes: list[int] | None, ranks: list[int] | None) -> Wanted:
    """Return what was asked for. Raises Fault(64) for a node or a rank that no pod has."""
    anywhere = job.kind.elastic(job.found) is not None
    if (nodes or ranks) and not anywhere:
        pods = jobs.pods(cluster, job)
        _check_known("--node", nodes, {pod.node for pod in pods if pod.node is not None}, job)
        _check_known("--rank", ranks, {rank for pod in pods for rank in pod.ranks}, job)
    return Wanted(frozenset(nodes or ()), frozenset(ranks or ()), anywhere)


def _check_known(option: str, asked: list[int] | None, known: set[int], job: Job) -> None:
    if unknown := sorted(set(asked or ()) - known):
        there = f"pods of {min(known)} to {max(known)}" if known else "no pods that say theirs"
        raise Fault(Exit.CONFIG, f"{option} {unknown[0]}: job {job.name} has {there}")


def prefix(pod: Pod, rank: int | None = None) -> str:
    """Return what a line begins with: its node, or the pod where that is not known, and its rank."""
    where = f"node {pod.node}" if pod.node is not None else pod.name
    return f"[{where}] " if rank is None else f"[{where} rank {rank}] "


def follow(
    cluster: Cluster,
    job: Job,
    show: Callable[[str], object],
    *,
    query: Mapping[str, object],
    wanted: Wanted = ALL,
) -> Fault | None:
    """Show the job's lines that are wanted: those there are, or with `follow` until the job ends.

    Return why, when not one of its logs could be read.
    """
    following = Following(cluster, query=query, wanted=wanted)
    try:
        while True:
            job = jobs.again(cluster, job)
            for pod in jobs.pods(cluster, job):
                if pod.phase != "Pending" and wanted.pod(pod):
                    following.add(pod)
            following.drain(show, seconds=_LOOK)
            if following.reading:
                continue
            if "follow" not in query or job.state.phase.ended:
                following.drain(show, seconds=0)
                none = following.unread and len(following.unread) == following.added
                return following.unread[0] if none else None
            time.sleep(_LOOK)
    finally:
        following.close()


class Following:
    """The logs of several pods at once, each read by a thread of its own.

    `close` ends every thread and connection. A pod that is added a second time is not read again.
    """

    def __init__(
        self, cluster: Cluster, *, query: Mapping[str, object], wanted: Wanted = ALL
    ) -> None:
        self._cluster = cluster
        self._query = dict(query)
        self._wanted = wanted
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._readers: dict[str, threading.Thread] = {}
        self._responses: dict[str, Any] = {}
        self._closing = threading.Event()
        self.unread: list[Fault] = []  # why, of each pod whose log there is and could not be read

    @property
    def added(self) -> int:
        """Return how many pods there were to read."""
        return len(self._readers)

    def add(self, pod: Pod) -> None:
        """Begin to read a pod's log."""
        if pod.uid not in self._readers:  # a pod that replaces another may have its name
            reader = threading.Thread(
                target=self._read, args=(pod,), name=f"log of {pod.name}", daemon=True
            )
            self._readers[pod.uid] = reader
            reader.start()

    @property
    def reading(self) -> bool:
        """Whether any log has not come to its end."""
        return any(reader.is_alive() for reader in self._readers.values())

    def drain(self, show: Callable[[str], object], *, seconds: float) -> None:
        """Show the lines that come within `seconds`; all there are, once no log is read any more."""
        end = time.monotonic() + seconds
        while True:
            reading, left = self.reading, end - time.monotonic()
            if reading and left <= 0:
                return  # who calls may have a log to add, however much the others say
            try:
                show(self._lines.get(timeout=min(left, 0.1) if reading else 0))
            except Empty:
                if not reading:
                    return

    def close(self) -> None:
        """End every connection, and with it the thread that reads it."""
        self._closing.set()
        for response in [*self._responses.values()]:
            _cut(response)
        for reader in self._readers.values():
            reader.join(timeout=5)

    def _read(self, pod: Pod) -> None:
        """Read a log to its end; with `follow`, go on where a connection broke off."""
        query = _of(pod.container, self._query)
        resumable = "follow" in query
        if resumable:
            query["timestamps"] = "true"
        last = ""
        while not self._closing.is_set():
            try:
                response = api.stream(
                    self._cluster, _path(self._cluster, pod.name), query, silence=_SILENCE
                )
            except Fault as fault:
                self._lines.put(f"{prefix(pod)}(no log: {fault})")
                if not isinstance(fault, Refused | Missing):  # which say that there is none
                    self.unread.append(fault)
                return
            self._responses[pod.uid] = response
            if self._closing.is_set():  # opened while `close` looked through the others
                _cut(response)
            last, whole = self._show(pod, response, last, stamped=resumable)
            if whole or not resumable:
                return
            if last:
                query.pop("sinceSeconds", None)
                query["sinceTime"] = last

    def _show(self, pod: Pod, response: Any, last: str, *, stamped: bool) -> tuple[str, bool]:
        """Queue an answer's lines after the time `last`; return the newest, and whether that was all."""
        before, rest, whole = last, b"", False
        try:
            while not self._closing.is_set():
                piece = response.read1(65536)
                *lines, rest = (rest + piece).split(b"\n")
                if not piece and rest:
                    lines, rest = [rest], b""
                for line in lines:
                    words = line.decode(errors="replace")
                    if stamped:
                        last, _, words = words.partition(" ")
                        if last <= before:  # shown before the connection broke
                            continue
                    self._put(pod, words)
                if not piece:
                    whole = True
                    break
        except _BROKEN:
            pass  # closed from here, or cut off
        finally:
            response.close()
        if rest and not stamped:
            self._put(pod, rest.decode(errors="replace"))
        return last, whole

    def _put(self, pod: Pod, line: str) -> None:
        rank = said.rank_of(line)
        if self._wanted.line(pod, rank):
            self._lines.put(prefix(pod, rank) + said.bare(line))


def _cut(response: Any) -> None:
    """Wake the thread that waits for more of an answer; closing it would wait for the thread."""
    sock = getattr(getattr(response, "connection", None), "sock", None)
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
