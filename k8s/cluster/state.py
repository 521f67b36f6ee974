"""One normalised state for the jobs of every launcher, and what their pods say. Pure.

Each launcher's folder has a `status.py` that knows its controller: which object it is, how to read it,
and which pod is which node.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from typing import Any

from trainer.exits import MEANINGS, Exit, Fault, combine

Object = dict[str, Any]


class Phase(StrEnum):
    """Where a job is."""

    PENDING = "pending"
    SUSPENDED = "suspended"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)


@dataclass(frozen=True)
class State:
    """A job's phase, why it is in it, and how often the job was started anew."""

    phase: Phase
    reason: str = ""
    restarts: int = 0
    ended_at: str | None = None


@dataclass(frozen=True)
class Change:
    """What makes a job larger or smaller: JSON Patch operations for an object of it."""

    api_version: str
    kind: str
    name: str
    operations: list[Object]


@dataclass(frozen=True)
class Kind:
    """What is known of a launcher's job object.

    `suspend` is the path of the field that stops its pods, empty where a Command of Volcano does;
    `elastic` the least and the most nodes of an elastic job, None for a job of fixed size; `scale`
    what gives it another number of nodes, the first change that the cluster takes.
    """

    launcher: str
    api_version: str
    kind: str
    suspend: tuple[str, ...]
    read: Callable[[Object], State]
    node: Callable[[Object], int | None]
    elastic: Callable[[Object], tuple[int, int] | None]
    scale: Callable[[Object, int], list[Change]]


CANCELLED = "muster/cancelled"  # the annotation that says when a job was cancelled
QUEUE = "kueue.x-k8s.io/queue-name"  # the label of a job that Kueue admits


def read(kind: Kind, job: Object) -> State:
    """Return how a job is: what its controller says, and who holds it or has cancelled it."""
    return marked(kind.read(job), job)


def marked(state: State, held: Object) -> State:
    """Return a job's state with what is noted on `held`, the object by which it is held."""
    queue = (held["metadata"].get("labels") or {}).get(QUEUE)
    if state.phase is Phase.SUSPENDED and queue:
        state = replace(state, reason=f"held by queue {queue} of Kueue")
    at = (held["metadata"].get("annotations") or {}).get(CANCELLED)
    if at is None or state.phase.ended:
        return state
    return State(Phase.CANCELLED, f"at {at}; `resume` would let it go on", state.restarts, at)


def nodes_in(template: Object) -> tuple[int, int] | None:
    """Return the least and the most nodes that a pod's template says, None when they are fixed."""
    names = [
        variable.get("value", "")
        for container in template.get("spec", {}).get("containers", [])
        for variable in container.get("env", [])
        if variable["name"] == "PET_NNODES"
    ]
    least, colon, most = (names or [""])[0].partition(":")
    return (int(least), int(most)) if colon else None


# A launcher's API may be missing in a cluster; these are asked for in this order.
LAUNCHERS = ("job", "jobset", "pytorchjob", "trainjob", "volcano")


def kinds() -> list[Kind]:
    """Return every launcher's kind of job."""
    return [import_module(f"k8s.templates.{name}.status").KIND for name in LAUNCHERS]


def condition(job: Object, *types: str) -> Object | None:
    """Return the first of the conditions `types` that is true."""
    held = {c["type"]: c for c in job.get("status", {}).get("conditions") or []}
    return next((held[t] for t in types if held.get(t, {}).get("status") == "True"), None)


def ended(found: Object, phase: Phase, restarts: int = 0) -> State:
    """Return the state of a job that a condition says has ended."""
    at = found.get("lastUpdateTime") or found.get("lastTransitionTime")
    return State(phase, _words(found), restarts, at)


@dataclass(frozen=True)
class Pod:
    """A node's pod. `codes` are the exit codes its containers ended with, newest last.

    `container` is the one that trains, with `procs` ranks.
    """

    name: str
    node: int | None
    host: str
    phase: str
    reason: str
    restarts: int
    codes: tuple[int, ...]
    procs: int | None
    uid: str
    container: str

    @property
    def ranks(self) -> range:
        """The ranks it runs; none where its node or their number is not known."""
        if self.node is None or self.procs is None:
            return range(0)
        return range(self.node * self.procs, (self.node + 1) * self.procs)


# A container that waits for these says nothing yet: another of its pod does, or none.
_BEFORE = ("PodInitializing", "ContainerCreating")


def pod(found: Object, kind: Kind) -> Pod:
    """Return what a pod says of itself."""
    status = found.get("status", {})
    first, then = (status.get(f"{part}Statuses") or [] for part in ("initContainer", "container"))
    ends = [
        end
        for container in [*first, *then]
        for name in ("lastState", "state")
        if (end := container.get(name, {}).get("terminated"))
        and (container in then or end["exitCode"])  # an init container that is done is no end
    ]
    container, procs = _trainer(found)
    return Pod(
        name=found["metadata"]["name"],
        node=kind.node(found),
        host=found.get("spec", {}).get("nodeName", ""),
        phase="Terminating"
        if "deletionTimestamp" in found["metadata"]
        else status.get("phase", ""),
        reason=_why(status, [*first, *then], ends),
        restarts=sum(c.get("restartCount", 0) for c in [*first, *then]),
        codes=tuple(e["exitCode"] for e in ends),
        procs=procs,
        uid=found["metadata"].get("uid", found["metadata"]["name"]),
        container=container,
    )


def _why(status: Object, containers: list[Object], ends: list[Object]) -> str:
    """Return what keeps a pod, or what ended it: the first that is told."""
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    disrupted, scheduled = (conditions.get(t, {}) for t in ("DisruptionTarget", "PodScheduled"))
    waits = [_waits(container) for container in containers]
    reasons = [
        _words(status),
        *(words for words in waits if words not in _BEFORE),
        _words(disrupted) if disrupted.get("status") == "True" else "",
        *(_end(end) for end in ends[-1:]),
        *waits,
        scheduled.get("message", "") if scheduled.get("status") == "False" else "",
    ]
    return next(filter(None, reasons), "")


def _waits(container: Object) -> str:
    words: str = container.get("state", {}).get("waiting", {}).get("reason", "")
    before = container.get("lastState", {}).get("terminated")
    return f"{words} after {_end(before)}" if words and before else words


def _end(end: Object) -> str:
    return f"exit {end['exitCode']} ({end.get('reason', '')})"


def _words(found: Object) -> str:
    return ": ".join(filter(None, (found.get("reason"), found.get("message"))))


def _trainer(found: Object) -> tuple[str, int | None]:
    """Return the container that trains, and how many ranks it runs by its environment."""
    containers = found.get("spec", {}).get("containers") or [{}]
    for container in containers:
        for variable in container.get("env", []):
            text = str(variable.get("value", ""))
            if variable["name"] == "PET_NPROC_PER_NODE" and text.isdecimal():
                return container["name"], int(text)
    return containers[0].get("name", ""), None


def label_number(name: str) -> Callable[[Object], int | None]:
    """Return what reads a pod's node number from its label `name`."""

    def read(found: Object) -> int | None:
        text = found["metadata"].get("labels", {}).get(name, "")
        return int(text) if text.isdecimal() else None

    return read


def exit_code(state: State, pods: Iterable[Pod]) -> Exit:
    """Return the code that speaks for a job that has ended: the pods' own, where they left one."""
    if state.phase is Phase.SUCCEEDED:
        return Exit.DONE
    if state.phase is Phase.CANCELLED:
        return Exit.STOPPED
    verdict = combine(_unshifted(pod.codes[-1]) for pod in pods if pod.codes)
    return Exit.CODE if verdict is Exit.DONE else verdict


def _unshifted(code: int) -> int:
    """Return what a code was before MUSTER_RETRY_EXIT_OFFSET moved it, see trainer/launch.py."""
    return code - 128 if code - 128 in MEANINGS and code != Exit.STOPPED else code


def find_kind(manifests: Iterable[Mapping[str, Any]]) -> tuple[Kind, Mapping[str, Any]]:
    """Return the one job among `manifests`. Raises Fault(64) when there is none, or more."""
    known = {(kind.api_version, kind.kind): kind for kind in kinds()}
    jobs = [m for m in manifests if (m.get("apiVersion"), m.get("kind")) in known]
    if len(jobs) != 1:
        wanted = ", ".join(kind for _, kind in known)
        raise Fault(Exit.CONFIG, f"{len(jobs)} jobs among the manifests; one of {wanted} is wanted")
    job = jobs[0]
    return known[job["apiVersion"], job["kind"]], job
