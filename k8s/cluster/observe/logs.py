"""The logs of a job's pods: read once or followed, each line with its node and rank.

follow(cluster, get_job(cluster, "digits"), print, query={"follow": "true"})
"""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import urllib3

from k8s.base.errors import config_error, in_one_line
from k8s.cluster import jobs
from k8s.cluster.client import api, objects
from k8s.cluster.client.api import Cluster, Missing, Refused
from k8s.cluster.jobs import Job
from k8s.cluster.state import Pod
from trainer.config import lines
from trainer.config.exits import Exit, Fault

_SILENCE = 600  # seconds without a line before a followed log is opened again
_LONGEST = 1 << 20  # bytes of a line; the rest of a longer line is dropped
_INTERVAL = 1.0  # seconds between two lists of the pods
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT")  # the kubelet's own words in a log have none
_BROKEN = (OSError, ValueError, urllib3.exceptions.HTTPError)


def text(cluster: Cluster, pod: str, container: str, query: Mapping[str, object]) -> str:
    """Return a container's log; it is empty if the container has not started or is gone.

    Raises what `api.call` raises.
    """
    try:
        response = _open(cluster, pod, container, query, silence=cluster.timeout)
    except (Refused, Missing):
        return ""
    with contextlib.closing(response):
        try:
            return response.read().decode(errors="replace")
        except urllib3.exceptions.HTTPError as error:
            text = f"{cluster.where}: log of {pod}: {in_one_line(error)}"
            raise Fault(Exit.PEER, text) from None


def _open(
    cluster: Cluster, pod: str, container: str, query: Mapping[str, object], *, silence: float
) -> urllib3.BaseHTTPResponse:
    path = objects.path_of(cluster, "v1", "Pod", pod) + "/log"
    options = {**query, "container": container} if container else query
    return api.stream(cluster, path, options, silence=silence)


@dataclass(frozen=True)
class Selection:
    """The nodes and ranks to show; all when both are empty.

    `anywhere`: any pod may have any rank, as in an elastic job.
    """

    nodes: frozenset[int] = frozenset()
    ranks: frozenset[int] = frozenset()
    anywhere: bool = False

    def has_pod(self, pod: Pod) -> bool:
        """Return whether a pod may have selected lines."""
        some = self.anywhere or not self.ranks.isdisjoint(pod.ranks)
        return self._all or pod.node in self.nodes or (bool(self.ranks) and some)

    def has_line(self, pod: Pod, rank: int | None) -> bool:
        """Return whether a pod's line is selected; `rank` is None for a line without a rank.

        In a pod with one rank, such a line is of this rank; in a pod with several, of the launcher.
        """
        if self._all or pod.node in self.nodes:
            return True
        return rank in self.ranks if rank is not None else len(pod.ranks) == 1

    @property
    def _all(self) -> bool:
        return not self.nodes and not self.ranks


ALL = Selection()


def select(
    cluster: Cluster, job: Job, nodes: list[int] | None, ranks: list[int] | None
) -> Selection:
    """Select nodes and ranks of a job. Raises Fault(64) for a node or a rank that no pod has."""
    anywhere = job.kind.elastic(job.manifest) is not None
    if (nodes or ranks) and not anywhere:
        pods = jobs.pods(cluster, job)
        _check_known("--node", nodes, {pod.node for pod in pods if pod.node is not None}, job)
        _check_known("--rank", ranks, {rank for pod in pods for rank in pod.ranks}, job)
    return Selection(frozenset(nodes or ()), frozenset(ranks or ()), anywhere)


def _check_known(option: str, asked: list[int] | None, known: set[int], job: Job) -> None:
    if unknown := sorted(set(asked or ()) - known):
        what = option.removeprefix("--") + "s"
        found = f"{what} {min(known)} to {max(known)}" if known else f"no pods with known {what}"
        raise config_error(f"{option} {unknown[0]}: job {job.name} has {found}")


def prefix(pod: Pod, rank: int | None = None) -> str:
    """Return the start of a line: its node, or its pod if the node is not known, and its rank."""
    where = f"node {pod.node}" if pod.node is not None else pod.name
    return f"[{where}] " if rank is None else f"[{where} rank {rank}] "


def follow(
    cluster: Cluster,
    job: Job,
    show: Callable[[str], object],
    *,
    query: Mapping[str, object],
    selection: Selection = ALL,
) -> Fault | None:
    """Show the job's selected lines; with `follow` in the query, until the job ends.

    Return an error if none of its logs could be read, or if the pods of a job that has ended are gone.
    """
    follower = LogFollower(cluster, query=query, selection=selection)
    try:
        while True:
            job = jobs.refresh(cluster, job)
            pods = jobs.pods(cluster, job)
            for pod in pods:
                if pod.has_log and selection.has_pod(pod):
                    follower.add(pod)
            follower.drain(show, seconds=_INTERVAL)
            if follower.reading:
                continue
            if "follow" not in query or job.state.phase.ended:
                follower.drain(show, seconds=0)
                if not pods and job.state.phase.ended:
                    return Fault(
                        Exit.DATA,
                        f"{cluster.where}: job {job.name} has ended and its pods are gone, with their "
                        "logs; the folder logs/ of its run folder has them",
                    )
                return follower.failure
            time.sleep(_INTERVAL)
    finally:
        follower.close()


class LogFollower:
    """Reads the logs of several pods at once, each in a thread.

    `close` ends every thread and connection. A container that is added twice is read once.
    """

    def __init__(
        self, cluster: Cluster, *, query: Mapping[str, object], selection: Selection = ALL
    ) -> None:
        self._cluster = cluster
        self._query = dict(query)
        self._selection = selection
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._readers: dict[tuple[str, str], threading.Thread] = {}
        self._responses: dict[tuple[str, str], Any] = {}
        self._closing = threading.Event()
        self._unread: list[Fault] = []  # one for each pod whose log could not be read

    @property
    def failure(self) -> Fault | None:
        """The first error, when no pod's log could be read."""
        none_read = self._unread and len(self._unread) == len(self._readers)
        return self._unread[0] if none_read else None

    def add(self, pod: Pod) -> None:
        """Start reading a pod's log."""
        # not the pod's name: a replaced pod may have the same
        if (key := (pod.uid, pod.container)) not in self._readers:
            reader = threading.Thread(
                target=self._read, args=(pod,), name=f"log of {pod.name}", daemon=True
            )
            self._readers[key] = reader
            reader.start()

    @property
    def reading(self) -> bool:
        """Whether any log has not ended."""
        return any(reader.is_alive() for reader in self._readers.values())

    def drain(self, show: Callable[[str], object], *, seconds: float) -> None:
        """Show lines for `seconds`; if no log is being read, show all that are left."""
        end = time.monotonic() + seconds
        while True:
            reading, left = self.reading, end - time.monotonic()
            if reading and left <= 0:
                return  # even if more lines come: the caller may have another pod to add
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
        """Read a log to its end; with `follow`, continue where a connection broke."""
        query = dict(self._query)
        resumable = "follow" in query
        if resumable:
            query["timestamps"] = "true"
        last = ""
        while not self._closing.is_set():
            try:
                response = _open(self._cluster, pod.name, pod.container, query, silence=_SILENCE)
            except Fault as fault:
                self._lines.put(f"{prefix(pod)}(no log: {fault})")
                if not isinstance(fault, Refused | Missing):  # these mean that there is no log
                    self._unread.append(fault)
                return
            self._responses[pod.uid, pod.container] = response
            if self._closing.is_set():  # opened while `close` was cutting the other connections
                _cut(response)
            last, ended = self._show(pod, response, last, stamped=resumable)
            if ended or not resumable:
                return
            if last:
                query.pop("sinceSeconds", None)
                query["sinceTime"] = last

    def _show(self, pod: Pod, response: Any, last: str, *, stamped: bool) -> tuple[str, bool]:
        """Queue lines newer than `last`; return the newest time, and whether the log has ended."""
        before, rest, ended = last, b"", False
        try:
            while not self._closing.is_set():
                piece = response.read1(65536)
                *complete, rest = (rest + piece).split(b"\n")
                rest = rest[:_LONGEST]
                if not piece and rest:
                    complete, rest = [rest], b""
                for line in complete:
                    text = line.decode(errors="replace")
                    if stamped and _STAMP.match(text):
                        last, _, text = text.partition(" ")
                        if last <= before:  # shown before the connection broke
                            continue
                    self._put(pod, text)
                if not piece:
                    ended = True
                    break
        except _BROKEN:
            pass  # ended by `close`, or broken
        finally:
            response.close()
        if rest and not stamped:
            self._put(pod, rest.decode(errors="replace"))
        return last, ended

    def _put(self, pod: Pod, line: str) -> None:
        rank = lines.rank_of(line)
        if self._selection.has_line(pod, rank):
            self._lines.put(prefix(pod, rank) + lines.bare(line))


def _cut(response: Any) -> None:
    """Wake the thread that reads a response; closing the response would wait for that thread."""
    sock = getattr(getattr(response, "connection", None), "sock", None)
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
